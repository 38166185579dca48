//! What a session's shell is made to read.
//!
//! A command is never typed: only a short line that sources a file is, so nothing that a command contains can break
//! anything. The shell reads the command's text in its own process, so that directory, variables, functions and umask stay;
//! both outputs go straight into a file, so that they are complete when the status is there, and whatever was left in the
//! background can go on writing without holding anything up.
//!
//! An interrupt, or in some shells a mistake, makes an interactive shell drop all that it was reading and go back to its
//! prompt. So the end is written by whichever comes first: the line after the command, or a hook of the prompt.
//!
//! A disk that is full still takes names of files where it takes no content. So that a command begins is said by its file's
//! being there, and its status, where it cannot be written, by the name of one more.

use std::path::Path;

/// Text as one word of a POSIX shell.
pub(super) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// What is typed to have a file read: first whatever somebody has left on the line is removed, and the space keeps it out
/// of the history.
pub(super) fn line(run: &str) -> String {
    format!("\x15 . {}\r", quote(run))
}

/// The file that runs a command. That it begins is written with what the kernel says of the shell. `at` is the path of the command's files without their ending. It does nothing when it is read
/// again, as may happen when it was typed by someone who was killed before they could know.
pub(super) fn run(at: &str, muster: &Path, directory: &str, number: u32) -> String {
    let file = |ending: &str| quote(&format!("{at}.{ending}"));
    let (begun, live, out, command) = (file("begun"), file("live"), file("out"), file("command"));
    let (at, muster, directory) = (quote(at), quote(&muster.to_string_lossy()), quote(directory));
    format!(
        r#"( set -C; : >{begun} ) 2>/dev/null || return 0
( read -r stat </proc/$$/stat; echo "$stat" >|{begun} ) 2>/dev/null
__muster_at={at}
__muster_end() {{
  [ -e "$__muster_at.status" ] || echo "$1" >"$__muster_at.status" || : >"$__muster_at.status.$1"
  ( i=0; while [ -e "$__muster_at.live" ] && [ "$i" -lt 50 ]; do sleep 0.01; i=$((i+1)); done ) 2>/dev/null
}}
__muster_prompt() {{
  __muster_status=$?
  [ -z "${{__muster_at-}}" ] || [ -e "$__muster_at.status" ] || __muster_end "$__muster_status"
  return "$__muster_status"
}}
if [ -n "${{ZSH_VERSION-}}" ]; then
  eval 'precmd_functions=(__muster_prompt ${{precmd_functions:#__muster_prompt}})'
elif [ -n "${{BASH_VERSION-}}" ]; then
  case "${{PROMPT_COMMAND-}}" in
  *__muster_prompt*) ;;
  *) PROMPT_COMMAND="__muster_prompt 2>/dev/null${{PROMPT_COMMAND:+; $PROMPT_COMMAND}}" ;;
  esac
else
  case "${{PS1-}}" in
  *__muster_prompt*) ;;
  *) PS1='$(__muster_prompt)'"${{PS1-}}" ;;
  esac
fi
( : >{live}; {muster} pour {directory} {number} & ) 2>/dev/null
{{ . {command}; }} >>{out} 2>&1
__muster_end $?
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_one_word() {
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("it's"), r"'it'\''s'");
        assert_eq!(line("/x/1.run"), "\x15 . '/x/1.run'\r");
    }

    #[test]
    fn shells_can_read_it() {
        let text = run("/it's/1", Path::new("/bin/muster"), "/it's", 1);
        for shell in ["bash", "dash", "zsh"] {
            let read = std::process::Command::new(shell).args(["-n", "-c", &text]).output();
            // Not every machine has all of them.
            if let Ok(read) = read {
                assert!(read.status.success(), "{shell}: {}", String::from_utf8_lossy(&read.stderr));
            }
        }
    }
}
