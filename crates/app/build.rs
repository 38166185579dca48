//! Links the binary at a fixed address: a supervisor for every task then shares all of its pages with the others, and
//! starts without relocating a quarter of a megabyte first.

fn main() {
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
