//! Links the binary at a fixed address: a supervisor for every task then shares all of its pages with the others, and
//! starts without relocating a quarter of a megabyte first. And functions that came out the same are kept once, since
//! the binary is sent to hosts.

fn main() {
    let is = |name: &str, value| std::env::var(name).as_deref() == Ok(value);
    if is("CARGO_CFG_TARGET_OS", "linux") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
        // Only there is the linker that comes with the compiler the one that is used, and knows how.
        if is("PROFILE", "release") && is("CARGO_CFG_TARGET_ARCH", "x86_64") {
            println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
        }
    }
    println!("cargo:rerun-if-changed=build.rs");
}
