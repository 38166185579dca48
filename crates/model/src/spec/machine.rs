//! What a machine cannot have: everything that says what runs.

use super::field::{FieldCode, Fields, Wrong};

/// Fields that speak of a command, its code or what it leaves behind.
const OF_WORK: [&str; 11] = [
    "command",
    "setup",
    "setup_once",
    "workdir",
    "in_place",
    "framework",
    "faces",
    "processes",
    "command_on",
    "outputs",
    "batch",
];

/// Reports the fields that make no sense without a command, rather than to leave them out in silence.
pub(super) fn refuse_work(fields: &mut Fields) {
    for name in OF_WORK {
        if fields.is_given(name) {
            let message =
                "a machine runs nothing of its own; leave it out, and use `muster exec` or a session";
            fields.error(name, Wrong::new(FieldCode::NotSupported, message));
        }
    }
}
