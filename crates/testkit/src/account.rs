//! Accounts of this machine.

use std::fs;

/// The number of an ordinary account of the tests; its group has the same.
pub(crate) fn number(name: &str) -> u32 {
    let known = fs::read_to_string("/etc/passwd").expect("accounts can be read");
    let entry = known.lines().find_map(|line| line.strip_prefix(&format!("{name}:x:")));
    let number = entry.and_then(|rest| rest.split(':').next()?.parse().ok());
    number.unwrap_or_else(|| {
        panic!("the account {name} is missing, as which tests run jobs: useradd --create-home --shell /bin/bash {name}")
    })
}
