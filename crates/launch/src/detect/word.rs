//! The words of a shell script, as far as they can be known without running it.
//!
//! Not a shell: it finds where commands begin and what their words are. Variables that the script itself has set are put in
//! their places; what only a run could tell is a [`HOLE`]. Any text gives some answer, in time that grows with its length.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

/// Stands in a word for what only a run could tell.
pub(super) const HOLE: char = '\u{fffc}';

/// Scripts within scripts that are looked into: nobody writes more.
const MAX_DEPTH: usize = 4;
/// What variables may add in all to the scripts that are read together: texts that contain each other would grow without end.
const MAX_GROWTH: usize = 256 << 10;
/// Words that stand before a command without being one.
const RESERVED: [&str; 11] = ["if", "then", "elif", "else", "while", "until", "do", "{", "}", "!", "coproc"];
/// Commands whose arguments may be assignments.
const DECLARING: [&str; 5] = ["export", "local", "declare", "readonly", "typeset"];

/// Programs of a shell that tell where another one is.
const WHICH: [&[&str]; 3] = [&["which"], &["command", "-v"], &["type", "-p"]];
/// Programs that print what sets up a shell.
const HOOKS: [&str; 5] = ["conda", "mamba", "micromamba", "pyenv", "direnv"];
/// What begins a block of which it is not known whether, or how often, it runs.
const OPENING: [&str; 6] = ["if", "while", "until", "for", "case", "select"];
const CLOSING: [&str; 3] = ["fi", "done", "esac"];
/// Commands behind which a script does not go on.
const ENDING: [&str; 3] = ["exit", "return", "exec"];
/// Commands that a script runs to learn whether they fail.
const TESTS: [&str; 12] =
    ["[", "[[", "test", "false", "grep", "command", "which", "type", "hash", "cmp", "diff", "expr"];

/// The bytes that variables have added to the scripts that are read together: a script in a word may be the value of a variable.
#[derive(Debug, Default)]
pub(super) struct ScriptGrowth(usize);

/// The simple commands of a script in the order in which they stand. The arguments are the script's, if they are known: `$1`,
/// `$@`.
pub(super) fn commands(
    script: &str,
    arguments: Option<&[String]>,
    growth: &mut ScriptGrowth,
) -> Vec<ShellCommand> {
    script_commands(script, arguments, growth).commands
}

/// A simple command.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ShellCommand {
    /// Never empty.
    pub words: Vec<String>,
    /// A condition decides whether it runs.
    pub may_be_skipped: bool,
}

/// What a script does, as far as its words tell.
#[derive(Debug, Default)]
pub(super) struct ScriptCommands {
    /// Its simple commands.
    pub commands: Vec<ShellCommand>,
    /// Whether something that a command prints goes into a file, which is made anew.
    pub writes_file: bool,
}

/// As [`commands`], and whether the script writes files.
pub(super) fn script_commands(
    script: &str,
    arguments: Option<&[String]>,
    growth: &mut ScriptGrowth,
) -> ScriptCommands {
    let mut reader = Reader::new(script, HashMap::new(), arguments, 0);
    reader.grown = growth.0;
    reader.read();
    growth.0 = reader.grown;
    ScriptCommands { commands: reader.commands, writes_file: reader.writes_file }
}

/// `NAME=value`, and the two halves.
pub(super) fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    let name = name.strip_suffix('+').unwrap_or(name);
    is_name(name).then_some((name, value))
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Whether nothing of a word is known.
pub(super) fn is_hole(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c == HOLE)
}

/// What is known of everything between `{` and `}`, or `(` and `)`.
#[derive(Debug, Clone, Copy, Default)]
struct Group {
    /// It has arguments of its own.
    is_function: bool,
    may_be_skipped: bool,
}

struct Reader<'a> {
    text: Vec<char>,
    at: usize,
    depth: usize,
    variables: HashMap<String, String>,
    /// Those of the script, less what `shift` has taken.
    arguments: Option<&'a [String]>,
    /// A quoted `$@` in the word that is being read stands for no word at all.
    is_without_arguments: bool,
    /// `{` and `(` that are open.
    groups: Vec<Group>,
    /// The next of them is the body of a function.
    defines_function: bool,
    /// Blocks that are open, of which it is not known whether, or how often, they run.
    open_blocks: usize,
    /// The command stands behind `||`, or behind `&&` and a test.
    is_guarded: bool,
    /// The command that ended last may well fail in a script that goes on.
    is_test: bool,
    /// A condition decides whether the script has ended.
    may_have_ended: bool,
    grown: usize,
    /// The word that is being read; none between words.
    word: Option<String>,
    /// Whether any of it was quoted: a quoted `if` is a program.
    is_quoted: bool,
    words: Vec<String>,
    /// How many of the words, from the first on, only stand before the command.
    reserved: usize,
    /// The next word is where output goes, and not the command's.
    is_redirected: bool,
    /// The next word is a file that is made anew.
    is_written: bool,
    writes_file: bool,
    /// Words that end the texts which begin at the next line.
    heredocs: Vec<String>,
    commands: Vec<ShellCommand>,
}

impl<'a> Reader<'a> {
    fn new(
        script: &str,
        variables: HashMap<String, String>,
        arguments: Option<&'a [String]>,
        depth: usize,
    ) -> Self {
        Self {
            text: script.chars().collect(),
            at: 0,
            depth,
            variables,
            arguments,
            is_without_arguments: false,
            groups: Vec::new(),
            defines_function: false,
            open_blocks: 0,
            is_guarded: false,
            is_test: false,
            may_have_ended: false,
            grown: 0,
            word: None,
            is_quoted: false,
            words: Vec::new(),
            reserved: 0,
            is_redirected: false,
            is_written: false,
            writes_file: false,
            heredocs: Vec::new(),
            commands: Vec::new(),
        }
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let found = self.peek();
        self.at += usize::from(found.is_some());
        found
    }

    fn push(&mut self, text: &str) {
        self.word.get_or_insert_default().push_str(text);
    }

    fn push_char(&mut self, c: char) {
        self.word.get_or_insert_default().push(c);
    }

    fn read(&mut self) {
        while let Some(c) = self.next() {
            match c {
                '\\' => match self.next() {
                    None | Some('\n') => {}
                    Some(c) => self.push_char(c),
                },
                '\'' => {
                    let text = self.until('\'');
                    self.push(&text);
                    self.is_quoted = true;
                }
                '"' => self.quoted(),
                '$' => self.expansion(false),
                '`' => {
                    let script = self.until('`');
                    self.nested(&script);
                    self.push_char(HOLE);
                }
                '#' if self.word.is_none() => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                '\n' => {
                    self.end_command();
                    self.skip_heredocs();
                }
                '&' if self.peek() == Some('>') => self.end_word(),
                '>' | '<' => self.redirection(c),
                '(' if self.word.as_ref().is_some_and(|word| word.ends_with('=')) => self.array(),
                '(' if self.peek() == Some(')') && self.names_function() => {
                    self.at += 1;
                    self.end_command();
                    self.defines_function = true;
                }
                '(' => {
                    self.end_command();
                    self.open_group();
                }
                ')' => {
                    self.end_command();
                    self.groups.pop();
                }
                '&' | '|' if self.peek() == Some(c) => {
                    self.at += 1;
                    let was_guarded = self.is_guarded;
                    self.end_command();
                    self.is_guarded = was_guarded || c == '|' || self.is_test;
                }
                '|' => {
                    let is_guarded = self.is_guarded;
                    self.end_command();
                    self.is_guarded = is_guarded;
                }
                ';' | '&' => self.end_command(),
                c if c.is_whitespace() => self.end_word(),
                c => self.push_char(c),
            }
        }
        self.end_command();
    }

    /// The text up to a character, which is taken too.
    fn until(&mut self, end: char) -> String {
        let from = self.at;
        while self.next().is_some_and(|c| c != end) {}
        let to = if self.text.get(self.at.wrapping_sub(1)) == Some(&end) && self.at > from {
            self.at - 1
        } else {
            self.at
        };
        self.text[from..to].iter().collect()
    }

    /// The text up to the bracket that closes one which is open, which is taken too.
    fn within(&mut self, open: char, close: char) -> String {
        let from = self.at;
        let mut depth = 1;
        while let Some(c) = self.next() {
            match c {
                '\\' => drop(self.next()),
                '\'' => drop(self.until('\'')),
                c if c == open => depth += 1,
                c if c == close => {
                    depth -= 1;
                    if depth == 0 {
                        return self.text[from..self.at - 1].iter().collect();
                    }
                }
                _ => {}
            }
        }
        self.text[from..].iter().collect()
    }

    fn quoted(&mut self) {
        let begins_word = self.word.is_none();
        self.is_without_arguments = false;
        self.push("");
        self.is_quoted = true;
        while let Some(c) = self.next() {
            match c {
                '"' => {
                    let is_nothing = begins_word && self.is_without_arguments;
                    self.word.take_if(|word| is_nothing && word.is_empty());
                    return;
                }
                '\\' => match self.next() {
                    Some('\n') | None => {}
                    Some(c @ ('$' | '`' | '"' | '\\')) => self.push_char(c),
                    Some(c) => {
                        self.push_char('\\');
                        self.push_char(c);
                    }
                },
                '$' => self.expansion(true),
                '`' => {
                    let script = self.until('`');
                    self.nested(&script);
                    self.push_char(HOLE);
                }
                c => self.push_char(c),
            }
        }
    }

    /// What stands after a `$`.
    fn expansion(&mut self, is_quoted: bool) {
        match self.peek() {
            Some('\'') if !is_quoted => {
                self.at += 1;
                let text = self.until('\'');
                self.push(&text);
            }
            Some('(') => {
                self.at += 1;
                let script = self.within('(', ')');
                if let Some(program) = program_looked_for(&script) {
                    self.push(program);
                    return;
                }
                if is_shell_hook(&script) {
                    return self.push("");
                }
                // `$((1 + 1))` is a sum.
                if !script.starts_with('(') {
                    self.nested(&script);
                }
                self.push_char(HOLE);
            }
            Some('[') => {
                self.at += 1;
                self.within('[', ']');
                self.push_char(HOLE);
            }
            Some('{') => {
                self.at += 1;
                let text = self.within('{', '}');
                self.variable(&text, is_quoted);
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                let from = self.at;
                while self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') {
                    self.at += 1;
                }
                let name: String = self.text[from..self.at].iter().collect();
                self.variable(&name, is_quoted);
            }
            Some(c @ ('@' | '*' | '1'..='9')) => {
                self.at += 1;
                self.variable(c.encode_utf8(&mut [0; 4]), is_quoted);
            }
            Some('#' | '?' | '$' | '!' | '-' | '0') => {
                self.at += 1;
                self.push_char(HOLE);
            }
            _ => self.push_char('$'),
        }
    }

    /// `NAME`, `NAME[@]`, `NAME:-default`, `1`, `@:2`.
    fn variable(&mut self, text: &str, is_quoted: bool) {
        if text.starts_with(['@', '*']) {
            return self.all_arguments(text, is_quoted);
        }
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let default = rest.strip_prefix(":-").or(rest.strip_prefix(":=")).or(rest.strip_prefix('-'));
        let is_demanded = rest.starts_with('?') || rest.starts_with(":?");
        let known = matches!(rest, "" | "[@]" | "[*]") || default.is_some() || is_demanded;
        let value = match name.parse() {
            Ok(number) => self.argument(number, default),
            Err(_) => self.variables.get(name).map(String::as_str).or(default),
        };
        match value.filter(|_| known).map(str::to_owned) {
            Some(value) if self.grown + value.len() <= MAX_GROWTH => {
                self.grown += value.len();
                // `"${words[@]}"` is as many words as there are in it.
                if is_quoted && !rest.starts_with('[') {
                    self.push(&value);
                } else {
                    self.split(&value);
                }
            }
            _ => self.push_char(HOLE),
        }
    }

    /// The arguments, where they are known: those of a function are not.
    fn known_arguments(&self) -> Option<&'a [String]> {
        self.arguments.filter(|_| !self.group().is_function && !self.defines_function)
    }

    /// The text of one argument, counted from 1. What stands behind one of which nothing is known may have another number.
    fn argument<'b>(&self, number: usize, default: Option<&'b str>) -> Option<&'b str>
    where
        'a: 'b,
    {
        let Some(arguments) = self.known_arguments() else { return default };
        let at = number.checked_sub(1)?;
        if arguments.iter().take(at).any(|word| is_hole(word)) {
            return None;
        }
        let given = arguments.get(at).map(String::as_str).filter(|word| !word.is_empty());
        given.or(default).or(Some(""))
    }

    /// `@`, `*`, and `@:2` for those from the second on.
    fn all_arguments(&mut self, text: &str, is_quoted: bool) {
        let skipped = match text[1..].strip_prefix(':') {
            None if text.len() == 1 => Some(0),
            Some(from) => from.trim().parse::<usize>().ok().and_then(|from| from.checked_sub(1)),
            None => None,
        };
        let words =
            self.known_arguments().zip(skipped).map(|(words, at)| words.get(at..).unwrap_or_default());
        let bytes = |words: &[String]| words.iter().map(|word| word.len() + 1).sum::<usize>();
        let Some(words) = words.filter(|words| self.grown + bytes(words) <= MAX_GROWTH) else {
            return self.push_char(HOLE);
        };
        self.grown += bytes(words);
        if !is_quoted {
            self.split(&words.join(" "));
        } else if text.starts_with('*') {
            self.push(&words.join(" "));
        } else {
            self.is_without_arguments |= words.is_empty();
            for (at, word) in words.iter().enumerate() {
                if at > 0 {
                    self.end_word();
                    self.is_quoted = true;
                }
                self.push(word);
            }
        }
    }

    fn split(&mut self, value: &str) {
        let mut pieces = value.split_whitespace().peekable();
        if value.starts_with(char::is_whitespace) {
            self.end_word();
        }
        while let Some(piece) = pieces.next() {
            self.push(piece);
            if pieces.peek().is_some() || value.ends_with(char::is_whitespace) {
                self.end_word();
            }
        }
    }

    /// `NAME=(a b c)`.
    fn array(&mut self) {
        let text = self.within('(', ')');
        let words: Vec<String> = self.inner(&text).into_iter().flat_map(|command| command.words).collect();
        self.push(&words.join(" "));
    }

    /// Commands that run while a word is made.
    fn nested(&mut self, script: &str) {
        let mut commands = self.inner(script);
        self.commands.append(&mut commands);
    }

    fn inner(&mut self, script: &str) -> Vec<ShellCommand> {
        if self.depth >= MAX_DEPTH {
            return Vec::new();
        }
        // Lent, not copied: a script may have many of both.
        let variables = std::mem::take(&mut self.variables);
        let mut inner = Reader::new(script, variables, self.known_arguments(), self.depth + 1);
        inner.grown = self.grown;
        inner.may_have_ended = self.may_have_ended || self.may_be_skipped();
        inner.read();
        self.grown = inner.grown;
        self.writes_file |= inner.writes_file;
        self.variables = inner.variables;
        inner.commands
    }

    fn redirection(&mut self, sign: char) {
        // `2>` is no word.
        if self.word.as_ref().is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit())) {
            self.word = None;
        }
        self.end_word();
        match (sign, self.peek()) {
            (_, Some('(')) => {
                self.at += 1;
                let script = self.within('(', ')');
                self.nested(&script);
                return;
            }
            ('<', Some('<')) => {
                self.at += 1;
                if self.peek() != Some('<') {
                    self.heredoc();
                    return;
                }
                self.at += 1;
            }
            // `>|` makes a file anew; `>>` adds to it, and `>&2` names none.
            (_, Some(next @ ('>' | '&' | '|'))) => {
                self.at += 1;
                self.is_written = sign == '>' && next == '|';
            }
            _ => self.is_written = sign == '>',
        }
        self.is_redirected = true;
    }

    fn heredoc(&mut self) {
        while self.peek().is_some_and(|c| matches!(c, '-' | ' ' | '\t' | '\\')) {
            self.at += 1;
        }
        let from = self.at;
        while self
            .peek()
            .is_some_and(|c| !c.is_whitespace() && !matches!(c, ';' | '&' | '|' | '>' | '<' | ')'))
        {
            self.at += 1;
        }
        let end: String = self.text[from..self.at].iter().filter(|c| !matches!(c, '\'' | '"')).collect();
        self.heredocs.push(end);
    }

    fn skip_heredocs(&mut self) {
        for end in std::mem::take(&mut self.heredocs) {
            while self.at < self.text.len() && self.until('\n').trim() != end {}
        }
    }

    fn end_word(&mut self) {
        let is_quoted = std::mem::take(&mut self.is_quoted);
        let Some(word) = self.word.take() else { return };
        if std::mem::take(&mut self.is_redirected) {
            self.writes_file |= std::mem::take(&mut self.is_written) && !word.starts_with("/dev/");
            return;
        }
        let is_reserved = !is_quoted && RESERVED.contains(&word.as_str());
        if is_reserved && self.reserved == self.words.len() {
            self.reserved += 1;
            match word.as_str() {
                "{" => self.open_group(),
                "}" => {
                    self.groups.pop();
                }
                word => self.open_blocks += usize::from(OPENING.contains(&word)),
            }
        }
        self.words.push(word);
    }

    /// Whether what stands before `()` is one word, the name of a function.
    fn names_function(&self) -> bool {
        let words = &self.words[self.reserved..];
        let is_announced = words.first().is_some_and(|word| word == "function");
        words.len() - usize::from(is_announced) + usize::from(self.word.is_some()) == 1
    }

    /// The innermost group.
    fn group(&self) -> Group {
        self.groups.last().copied().unwrap_or_default()
    }

    fn open_group(&mut self) {
        let (outer, is_function) = (self.group(), std::mem::take(&mut self.defines_function));
        self.groups.push(Group {
            is_function: outer.is_function || is_function,
            may_be_skipped: outer.may_be_skipped || is_function || self.is_guarded,
        });
        self.is_guarded = false;
    }

    /// Whether the shell may go on without having run the command that is being read.
    fn may_be_skipped(&self) -> bool {
        self.is_guarded || self.open_blocks > 0 || self.group().may_be_skipped
    }

    /// Keeps the arguments and the blocks as a command leaves them.
    fn follow_shell(&mut self, words: &[String]) {
        let Some((name, rest)) = words.split_first() else { return };
        match name.as_str() {
            name if OPENING.contains(&name) => self.open_blocks += 1,
            name if CLOSING.contains(&name) => self.open_blocks = self.open_blocks.saturating_sub(1),
            "function" => {
                self.defines_function = true;
                if rest.last().is_some_and(|word| word == "{") {
                    self.open_group();
                }
            }
            _ if self.group().is_function => {}
            "shift" => {
                let count = rest.first().map_or(Some(1), |word| word.parse::<usize>().ok());
                let left = self.arguments.zip(count).and_then(|(words, count)| words.get(count..));
                self.arguments = left.filter(|_| self.depth == 0 && !self.may_be_skipped());
            }
            "set" if !(0..rest.len()).all(|at| is_shell_option(rest, at)) => self.arguments = None,
            _ => {}
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.is_redirected = false;
        self.is_written = false;
        let words = std::mem::take(&mut self.words);
        let (reserved, words) = words.split_at(std::mem::take(&mut self.reserved));
        self.is_test = words.first().is_none_or(|word| TESTS.contains(&word.as_str()))
            || reserved.iter().any(|word| word == "!");
        let declares = words.first().is_some_and(|word| DECLARING.contains(&word.as_str()));
        if declares || words.iter().all(|word| assignment(word).is_some()) {
            for (name, value) in words.iter().filter_map(|word| assignment(word)) {
                self.variables.insert(name.to_owned(), value.to_owned());
            }
        }
        if !words.is_empty() {
            let words = words.to_vec();
            let may_be_skipped = self.may_have_ended || self.may_be_skipped();
            self.may_have_ended |= may_be_skipped && ENDING.contains(&words[0].as_str());
            self.follow_shell(&words);
            self.commands.push(ShellCommand { words, may_be_skipped });
            self.is_guarded = false;
        }
    }
}

/// Whether a word behind `set` is an option, `-e`, or the name of one, `-o pipefail`, and no argument.
fn is_shell_option(words: &[String], at: usize) -> bool {
    let is_flag = |word: &String| word.starts_with(['-', '+']) && word != "--";
    is_flag(&words[at]) || at > 0 && is_flag(&words[at - 1]) && words[at - 1].ends_with('o')
}

/// Whether what a command prints only sets up a shell that reads it: `eval "$(conda shell.bash hook)"`.
fn is_shell_hook(script: &str) -> bool {
    let mut words = script.split_whitespace();
    words.next().is_some_and(|program| HOOKS.contains(&program.rsplit('/').next().unwrap_or(program)))
        && words.any(|word| matches!(word, "hook" | "init"))
}

/// `torchrun` of `$(which torchrun)`.
fn program_looked_for(script: &str) -> Option<&str> {
    let words: Vec<&str> = script.split_whitespace().collect();
    let (program, before) = words.split_last()?;
    let is_name = program.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte));
    (is_name && WHICH.contains(&before)).then_some(program)
}
