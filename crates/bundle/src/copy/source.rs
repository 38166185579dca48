//! What is meant by the names that are given: homes, patterns, and what things are called where they go.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

use super::reason;
use super::send::Source;

/// The most that patterns may find.
const MAX_FOUND: usize = 100_000;
/// The output directory, as `muster get` calls it, and as it is called where it goes.
const OUTPUT: &[u8] = b"@output";

/// What words stand for where a name is looked up.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// `~`.
    pub home: Option<PathBuf>,
    /// `@output`.
    pub output: Option<PathBuf>,
}

impl Surroundings {
    /// The path that is meant.
    pub fn path(&self, text: &[u8]) -> PathBuf {
        let (first, rest) = match text.iter().position(|byte| *byte == b'/') {
            Some(slash) => (&text[..slash], &text[slash + 1..]),
            None => (text, &[][..]),
        };
        let stands_for = match first {
            b"~" => self.home.as_ref(),
            OUTPUT => self.output.as_ref(),
            _ => None,
        };
        match stands_for {
            Some(path) => path.join(OsStr::from_bytes(trim_start(rest))),
            None if text.is_empty() => PathBuf::from("."),
            None => PathBuf::from(OsStr::from_bytes(text)),
        }
    }
}

fn trim_start(text: &[u8]) -> &[u8] {
    let slashes = text.iter().take_while(|byte| **byte == b'/').count();
    &text[slashes..]
}

/// What a source is called where it goes. None for a directory without a name of its own (`.`, `..`, `/`, `~`, nothing at
/// all), whose contents go there.
pub fn base(text: &[u8]) -> Option<&[u8]> {
    let end = text.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let text = &text[..end];
    let last = text.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    match last {
        b"" | b"." | b".." => None,
        b"~" if text == last => None,
        OUTPUT if text == last => Some(b"output"),
        name => Some(name),
    }
}

/// Whether it may be a pattern.
pub fn has_pattern(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// The matcher of one component of a pattern.
pub(super) fn matcher(component: &[u8]) -> Option<GlobMatcher> {
    let pattern = std::str::from_utf8(component).ok()?;
    Some(GlobBuilder::new(pattern).literal_separator(true).build().ok()?.compile_matcher())
}

/// Whether a pattern's component means this name. As in a shell, what is hidden must be asked for.
pub(super) fn is_match(matcher: &GlobMatcher, name: &[u8]) -> bool {
    let asks_for_hidden = matcher.glob().glob().starts_with('.');
    (!name.starts_with(b".") || asks_for_hidden) && matcher.is_match(OsStr::from_bytes(name))
}

/// What a name means, or all that a pattern finds. What is there under the very name is meant, whatever
/// is in it, and so is a pattern that finds nothing.
pub fn expand(text: &[u8], surroundings: &Surroundings) -> Result<Vec<Source>, String> {
    let path = surroundings.path(text);
    let named = |path: PathBuf, text: &[u8]| Source { path, base: base(text).map(<[u8]>::to_vec) };
    if !has_pattern(text) || path.symlink_metadata().is_ok() {
        return Ok(vec![named(path, text)]);
    }
    let found = find(&path).map_err(|error| reason(&error))?;
    if found.is_empty() {
        // That it is not there is found by whoever opens it.
        return Ok(vec![named(path, text)]);
    }
    Ok(found
        .into_iter()
        .map(|path| {
            let text = path.as_os_str().as_bytes().to_vec();
            named(path, &text)
        })
        .collect())
}

/// Goes down the components of a pattern.
fn find(pattern: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![PathBuf::new()];
    for component in pattern.components() {
        let component = component.as_os_str();
        let Some(matcher) = matcher(component.as_bytes()).filter(|_| has_pattern(component.as_bytes()))
        else {
            found.iter_mut().for_each(|path| path.push(component));
            continue;
        };
        let mut next = Vec::new();
        for folder in &found {
            for name in names(folder) {
                if is_match(&matcher, name.as_bytes()) {
                    next.push(folder.join(name));
                }
                if next.len() > MAX_FOUND {
                    return Err(io::Error::other("the pattern finds too many files; copy the directory"));
                }
            }
        }
        next.sort_unstable();
        found = next;
    }
    found.retain(|path| path.symlink_metadata().is_ok());
    Ok(found)
}

/// What is in a directory; nothing in one that is none or cannot be read, as in a shell.
fn names(folder: &Path) -> Vec<OsString> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect()
}

/// A path as the bytes of its name.
pub(super) fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().to_owned().into_vec()
}
