//! Faces: the command lines of other systems, answered by this one. Each translates and shows; what is done is done by the
//! same modules as for muster's own commands.

pub(crate) mod fastgpu;

use std::ffi::OsString;
use std::path::Path;

use self::fastgpu::Generation;

/// Which face this program was called by, and the words of the call: a link to the binary of that name, or the name as
/// muster's first word.
pub(crate) fn called(words: &[OsString]) -> Option<(Generation, &[OsString])> {
    let named = |word: &OsString| Generation::named(Path::new(word).file_name()?.to_str()?);
    let first = words.first().and_then(named);
    match (first, words.get(1)) {
        // A copy of the binary starts the server and the agent by its own name.
        (Some(_), Some(word)) if word == "server" || word == "agent" => None,
        (Some(generation), _) => Some((generation, words)),
        (None, Some(word)) => Generation::named(word.to_str()?).map(|generation| (generation, &words[1..])),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_face_is_known_by_the_name_of_the_program_or_the_first_word() {
        let of = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            called(&words).map(|(generation, words)| (generation, words.len()))
        };
        assert_eq!(of("/usr/bin/ecluster ls -a"), Some((Generation::Ecluster, 3)));
        assert_eq!(of("fastgpu"), Some((Generation::Fastgpu, 1)));
        assert_eq!(of("muster fastgpu ls"), Some((Generation::Fastgpu, 2)));
        assert_eq!(of("muster ls"), None);
        assert_eq!(of("/opt/fastgpu server run"), None);
    }
}
