//! The last line of standard error, for programs that say why they end and print no traceback.

use muster_link::log::Stream;

use super::output::Line;

/// torchrun's own lines about a failed process name its source file.
const TORCHRUN: [&str; 2] = ["torch/distributed/elastic", "torch.distributed.elastic"];
/// A program that names an error ends then. What it had buffered for standard output may come after that.
const AT_THE_END_MICROS: u64 = 1_000_000;

/// `sys.exit("no data in /data")`, `sh: 1: pyton: not found`.
pub(super) fn last_error_line<'a>(lines: &[&'a Line]) -> Option<&'a str> {
    let is_of_torchrun = |line: &&Line| TORCHRUN.iter().any(|name| line.text.contains(name));
    let of_program = &lines[..lines.iter().position(is_of_torchrun).unwrap_or(lines.len())];
    let end = of_program.iter().map(|line| line.time_micros).max()?;
    let is_error = |line: &&&Line| {
        line.stream == Stream::Stderr
            && line.time_micros + AT_THE_END_MICROS >= end
            && line.text.contains(char::is_alphanumeric)
    };
    of_program.iter().rfind(is_error).copied().map(|line| line.text.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(lines: &[Line]) -> Option<&str> {
        last_error_line(&lines.iter().collect::<Vec<_>>())
    }

    fn line(stream: Stream, second: u64, text: &str) -> Line {
        Line { stream, time_micros: second * 1_000_000, text: text.into() }
    }

    #[test]
    fn the_last_words_count_where_they_come_at_the_end() {
        let mut lines = vec![
            line(Stream::Stderr, 5, "a warning"),
            line(Stream::Stderr, 9, "no data in /data"),
            line(Stream::Stderr, 9, "====="),
            line(Stream::Stdout, 9, "epoch 1"),
        ];
        assert_eq!(last(&lines), Some("no data in /data"));
        lines.push(line(Stream::Stdout, 12, "epoch 2"));
        assert_eq!(last(&lines), None);
    }

    #[test]
    fn the_words_of_torchrun_are_not_the_programs() {
        let lines = [
            line(Stream::Stderr, 1, "no data in /data"),
            line(
                Stream::Stderr,
                9,
                "E1118 10:00:00 1 torch/distributed/elastic/multiprocessing/api.py:984] failed",
            ),
            line(Stream::Stderr, 9, "t.py FAILED"),
        ];
        assert_eq!(last(&lines), Some("no data in /data"));
    }
}
