//! Links the binary at a fixed address: a supervisor for every task then shares all of its pages with the others, and
//! starts without relocating a quarter of a megabyte first. And functions that came out the same are kept once, since
//! the binary is sent to hosts.

fn main() {
    let is = |name: &str, value| std::env::var(name).as_deref() == Ok(value);
    if is("CARGO_CFG_TARGET_OS", "linux") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
        // Cargo's own `strip` does not reach a package that is optimised in a way of its own.
        if is("PROFILE", "release") {
            println!("cargo:rustc-link-arg-bins=-Wl,--strip-all");
        }
        // Only there is the linker that comes with the compiler the one that is used, and knows how; zig's does not.
        let is_zig = std::env::var("RUSTC_LINKER").is_ok_and(|linker| linker.contains("zigcc"));
        if is("PROFILE", "release") && is("CARGO_CFG_TARGET_ARCH", "x86_64") && !is_zig {
            println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
        }
    }
    println!("cargo:rerun-if-changed=build.rs");
}
