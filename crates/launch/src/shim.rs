//! Programs and modules that tasks are given in front of the real ones, where these would not do what a platform's did.

use muster_model::launch::NEXT_ON_PATH;

use crate::Part;

const BIN: &str = "/muster/bin";
const PYTHON: &str = "/muster/python";

/// `python` runs shell scripts as well.
pub(crate) fn python(part: &mut Part) {
    program(part, "python", include_str!("shim/python.sh"));
    program(part, "python3", include_str!("shim/python.sh"));
}

/// `sudo` never asks for a password.
pub(crate) fn sudo(part: &mut Part) {
    program(part, "sudo", include_str!("shim/sudo.sh"));
}

/// `msrun` in a script knows of the gang.
pub(crate) fn msrun(part: &mut Part) {
    program(part, "msrun", include_str!("shim/msrun.sh"));
}

/// Programs in Python find what has since been taken away from their libraries, and the rank that they have.
pub(crate) fn sitecustomize(part: &mut Part) {
    let path = format!("{PYTHON}/sitecustomize.py");
    if !part.has(&path) {
        part.file(path, include_str!("shim/sitecustomize.py"));
    }
    part.front("PYTHONPATH", PYTHON);
}

fn program(part: &mut Part, name: &str, content: &str) {
    let path = format!("{BIN}/{name}");
    if !part.has(&path) {
        part.program(path, content.replace("@NEXT@\n", NEXT_ON_PATH));
    }
    part.front("PATH", BIN);
}
