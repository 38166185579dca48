//! Tables without borders, in the manner of `docker ps`: made for eyes, `grep` and `awk` alike.
//!
//! comfy-table was weighed: it colours cells only together with crossterm, and what is left is these few lines.

use muster_api::model::printable;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::terminal::{self, Colour};

/// Between columns.
const GAP: usize = 3;
/// A last column narrower than this says nothing; the terminal may wrap instead.
const LEAST_LAST: usize = 10;

pub(crate) struct Cell {
    text: String,
    colour: Option<Colour>,
}

impl Cell {
    pub fn coloured(text: impl Into<String>, colour: Option<Colour>) -> Self {
        // Escaped here rather than when it is printed, so that its width is known.
        Self { text: printable::one_line(&text.into()), colour }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::coloured(text, None)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::coloured(text, None)
    }
}

pub(crate) struct Table {
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(|heading| Cell::from(*heading)).collect()] }
    }

    pub fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// Inserts a column after the one of this place, with a text for some of the rows; without any, there is no such column.
    pub fn insert_after(&mut self, place: usize, heading: &str, texts: &[Option<&str>]) {
        if texts.iter().all(Option::is_none) {
            return;
        }
        let cells = [Some(heading)].into_iter().chain(texts.iter().copied());
        for (row, text) in self.rows.iter_mut().zip(cells) {
            row.insert(place + 1, text.unwrap_or("-").into());
        }
    }

    /// The whole table. With a width, the last column is cut so that a row is a line.
    pub fn render(&self, width: Option<usize>, colours: bool) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut widths = vec![0; columns];
        for row in &self.rows {
            for (widest, cell) in widths.iter_mut().zip(row) {
                *widest = cell.text.width().max(*widest);
            }
        }
        let before_last: usize = widths.iter().take(columns.saturating_sub(1)).map(|width| width + GAP).sum();
        let last_width = width.map(|width| width.saturating_sub(before_last).max(LEAST_LAST));
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (i, cell) in row.iter().enumerate() {
                let is_last = i + 1 == columns;
                let shown = match last_width.filter(|_| is_last) {
                    Some(width) => clipped(&cell.text, width),
                    None => cell.text.clone(),
                };
                let padding = if is_last { 0 } else { widths[i] + GAP - shown.width() };
                match cell.colour {
                    Some(colour) => line.push_str(&terminal::paint(&shown, colour, colours)),
                    None => line.push_str(&shown),
                }
                line.extend(std::iter::repeat_n(' ', padding));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// The text in at most `width` columns, its end marked when it was cut.
pub(crate) fn clipped(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let mut short: String = text
        .chars()
        .take_while(|c| {
            let needed = c.width().unwrap_or(0);
            let fits = needed <= left;
            left = left.saturating_sub(needed);
            fits
        })
        .collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["ID", "NAME", "COMMAND"]);
        table.row(vec!["job_1".into(), "größe".into(), "python train.py --epochs 3".into()]);
        table.row(vec!["job_22".into(), Cell::coloured("训练", Some(Colour::Red)), "sh -c 'a\nb'".into()]);
        table.row(vec!["job_3".into(), "".into(), "".into()]);
        table
    }

    #[test]
    fn columns_line_up_whatever_the_letters() {
        let text = table().render(None, false);
        assert_eq!(
            text,
            "ID       NAME    COMMAND\njob_1    größe   python train.py --epochs 3\njob_22   训练    sh -c 'a b'\njob_3\n"
        );
    }

    #[test]
    fn a_column_is_inserted_where_a_row_has_a_text_for_it() {
        let mut with = table();
        with.insert_after(1, "DISPLAY NAME", &[None, Some("训练任务（第二轮）"), Some("e\u{301}")]);
        let text = with.render(None, false);
        let places = |line: &str, word: &str| line.find(word).map(|at| line[..at].width());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "ID       NAME    DISPLAY NAME         COMMAND");
        assert_eq!(lines[1], "job_1    größe   -                    python train.py --epochs 3");
        assert_eq!(places(lines[2], "sh -c"), places(lines[0], "COMMAND"), "{text}");
        let mut without = table();
        without.insert_after(1, "DISPLAY NAME", &[None, None, None]);
        assert_eq!(without.render(None, false), table().render(None, false));
    }

    #[test]
    fn the_last_column_is_cut_to_the_terminal() {
        let text = table().render(Some(30), false);
        assert!(text.lines().all(|line| line.width() <= 30), "{text}");
        assert!(text.contains("python train…"), "{text}");
    }

    #[test]
    fn colours_do_not_move_columns() {
        let text = table().render(None, true);
        let name = terminal::paint("训练", Colour::Red, true);
        assert!(text.contains(&format!("{name}    sh -c")), "{text}");
    }

    #[test]
    fn no_cell_moves_the_cursor_or_begins_a_line() {
        let mut table = Table::new(&["NAME", "COMMAND"]);
        table.row(vec!["\x1b]0;x\x07\u{202e}".into(), "a\n\tb\rc".into()]);
        let text = table.render(None, false);
        assert_eq!(text.lines().nth(1), Some(r"\x1b]0;x\x07\u{202e}   a  b\rc"));
    }

    #[test]
    fn wide_letters_are_not_cut_in_half() {
        assert_eq!(clipped("训练任务", 5), "训练…");
        assert_eq!(clipped("训练", 4), "训练");
    }
}
