//! A page of the documentation as something to do. The conventions are in `docs/dev/write-a-guide.md`.

/// What is done, in the order of the page.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// A file that the page shows, or that its reader is taken to have.
    File { name: String, text: String },
    /// A command that is run.
    Command { line: usize, text: String, exit: i32, output: Vec<String> },
    /// A command that is not, and why.
    Skipped { line: usize, text: String, reason: String },
}

/// What stands before a block and changes what it means.
#[derive(Default)]
struct Before {
    /// The last line of text.
    text: String,
    /// From `<!-- not run: REASON -->`.
    reason: Option<String>,
}

/// Reads a page.
pub fn steps(page: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut before = Before::default();
    let mut lines = page.lines().enumerate().map(|(i, line)| (i + 1, line));
    while let Some((number, line)) = lines.next() {
        if let Some(rest) = line.strip_prefix("<!-- ") {
            let mut comment = rest.to_owned();
            while !comment.contains("-->") {
                let Some((_, more)) = lines.next() else {
                    return Err(format!("line {number}: the comment does not end"));
                };
                comment = format!("{comment}\n{more}");
            }
            let comment = comment.split("-->").next().unwrap_or_default();
            before.reason = comment.strip_prefix("not run: ").map(|reason| reason.trim().replace('\n', " "));
            steps.extend(comment.strip_prefix("given `").and_then(given));
        } else if let Some(language) = line.trim_start().strip_prefix("```") {
            let block: Vec<(usize, &str)> =
                lines.by_ref().take_while(|(_, line)| line.trim_start() != "```").collect();
            steps.extend(block_steps(language.trim(), number, &block, &before)?);
            before = Before::default();
        } else if !line.trim().is_empty() {
            before = Before { text: line.trim_end().to_owned(), reason: None };
        }
    }
    Ok(steps)
}

/// `NAME`: and the file's content, from a comment.
fn given(comment: &str) -> Option<Step> {
    let (head, text) = comment.split_once('\n')?;
    Some(Step::File { name: head.strip_suffix("`:")?.to_owned(), text: text.to_owned() })
}

fn block_steps(
    language: &str,
    number: usize,
    block: &[(usize, &str)],
    before: &Before,
) -> Result<Vec<Step>, String> {
    if ["console", "bash", "sh"].contains(&language) {
        return console(block, before.reason.as_ref());
    }
    let Some(name) = file_name(&before.text) else { return Ok(Vec::new()) };
    if before.reason.is_some() {
        return Err(format!("line {number}: a file is not run"));
    }
    let text = block.iter().map(|(_, line)| format!("{line}\n")).collect();
    Ok(vec![Step::File { name, text }])
}

/// The name at the end of a line that introduces a file: "… `train.py`:".
fn file_name(line: &str) -> Option<String> {
    let name = line.strip_suffix(':').or(line.strip_suffix('：'))?.strip_suffix('`')?.rsplit('`').next()?;
    (!name.contains(' ')).then(|| name.to_owned())
}

fn console(block: &[(usize, &str)], reason: Option<&String>) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut lines = block.iter().peekable();
    while let Some((number, line)) = lines.next() {
        let mut text =
            line.strip_prefix("$ ").ok_or(format!("line {number}: no `$ ` before a command"))?.to_owned();
        while text.ends_with('\\') {
            let more = lines.next().map_or("", |(_, more)| more.strip_prefix("> ").unwrap_or(more));
            text = format!("{text}\n{more}");
        }
        let mut output = Vec::new();
        while let Some((_, line)) = lines.next_if(|(_, line)| !line.starts_with("$ ")) {
            output.push((*line).to_owned());
        }
        steps.push(match reason {
            Some(reason) => Step::Skipped { line: *number, text, reason: reason.clone() },
            None => Step::Command { line: *number, exit: exit(&text), text, output },
        });
    }
    Ok(steps)
}

/// What the page says the command exits with, in its remark; otherwise 0.
fn exit(command: &str) -> i32 {
    let said = ["# exits with ", "# 退出码 "].iter().find_map(|words| command.split_once(words));
    said.and_then(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()).unwrap_or(0)
}

/// Whether a command printed what the page shows. `…` stands for anything in a line, alone for any lines; how much
/// space there is does not matter, nor does the order in which tasks of a gang printed.
pub fn fits(shown: &[String], printed: &str) -> bool {
    let tidy = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown: Vec<String> = shown.iter().map(|line| tidy(line)).collect();
    let printed: Vec<String> = printed.lines().map(tidy).collect();
    lines_fit(&by_task(shown), &by_task(printed))
}

/// Lines of tasks that stand together, sorted by task.
fn by_task(lines: Vec<String>) -> Vec<String> {
    let task = |line: &str| line.split_once(" |").is_some_and(|(label, _)| label.starts_with("task"));
    let mut sorted = Vec::new();
    for run in lines.chunk_by(|a, b| task(a) && task(b)) {
        let mut run = run.to_vec();
        run.sort_by_key(|line| line.split_once(" |").map(|(label, _)| label.to_owned()));
        sorted.extend(run);
    }
    sorted
}

fn lines_fit(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line == "…" => (0..=printed.len()).any(|i| lines_fit(rest, &printed[i..])),
        Some((line, rest)) => {
            printed.split_first().is_some_and(|(first, left)| line_fits(line, first) && lines_fit(rest, left))
        }
    }
}

fn line_fits(shown: &str, printed: &str) -> bool {
    match shown.split_once('…') {
        None => shown == printed,
        Some((before, after)) => printed.strip_prefix(before).is_some_and(|rest| {
            let mut ends = rest.char_indices().map(|(i, _)| i).chain([rest.len()]);
            ends.any(|i| line_fits(after, &rest[i..]))
        }),
    }
}

#[test]
fn a_page_is_read_as_its_reader_would() {
    let page = "\
Put this into `train.py`:

```python
print(1)
```
<!-- given `$MUSTER_HOME/config.toml`:
[local]
-->
```console
$ muster run -- python train.py   # exits with 3
1
error: …
$ muster ps \\
>   --all
```

An answer:

```json
{}
```

<!-- not run: it builds -->
```console
$ make demo
```
";
    let file = |name: &str, text: &str| Step::File { name: name.into(), text: text.into() };
    let expected = vec![
        file("train.py", "print(1)\n"),
        file("$MUSTER_HOME/config.toml", "[local]\n"),
        Step::Command {
            line: 10,
            text: "muster run -- python train.py   # exits with 3".into(),
            exit: 3,
            output: vec!["1".into(), "error: …".into()],
        },
        Step::Command { line: 13, text: "muster ps \\\n  --all".into(), exit: 0, output: vec![] },
        Step::Skipped { line: 25, text: "make demo".into(), reason: "it builds".into() },
    ];
    assert_eq!(steps(page).unwrap(), expected);
    assert!(steps("```console\nmuster ps\n```\n").is_err(), "a command has its prompt");
    assert!(steps("<!-- not run: why\n").is_err());
}

#[test]
fn what_differs_from_run_to_run_is_written_as_an_ellipsis() {
    let same =
        |shown: &str, printed: &str| fits(&shown.lines().map(str::to_owned).collect::<Vec<_>>(), printed);
    assert!(same("job_… done  in …s\n", "job_abc done in 1.0s\n"));
    assert!(!same("job_… done\n", "job_abc failed\n"));
    assert!(same("a\n…\nz\n", "a\nb\nc\nz\n"));
    assert!(same("…\n", ""));
    assert!(!same("a\n", "a\nb\n"), "more was printed than is shown");
    assert!(same("task0 | a\ntask1 | b\n", "task1 | b\ntask0 | a\n"), "tasks print when they like");
    assert!(!same("task0 | a\ntask0 | b\n", "task0 | b\ntask0 | a\n"), "one task prints in order");
}
