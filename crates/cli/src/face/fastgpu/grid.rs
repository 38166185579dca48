//! Tables as the other tool draws them: the newer generation has bars between columns and a ruler after every row, the
//! older one has gaps, and a ruler above and below the headings.

use muster_api::model::printable;
use unicode_width::UnicodeWidthStr;

/// How the cells of a table are kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    Bars,
    Gaps,
}

impl Layout {
    const fn between(self) -> &'static str {
        match self {
            Self::Bars => " | ",
            Self::Gaps => "  ",
        }
    }
}

/// A column: its heading, its least width, and whether it is pushed to the right.
pub(super) struct Column {
    pub heading: &'static str,
    pub least: usize,
    pub right: bool,
}

/// The whole table. The last column is not filled up, as nothing follows it.
pub(super) fn draw(layout: Layout, columns: &[Column], rows: &[Vec<String>]) -> String {
    // Escaped before they are measured.
    let escape = |row: &Vec<String>| row.iter().map(|cell| printable::one_line(cell)).collect();
    let rows: &Vec<Vec<String>> = &rows.iter().map(escape).collect();
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.width());
        cells.max().unwrap_or(0).max(columns[at].least).max(columns[at].heading.width())
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let gaps = layout.between().len() * columns.len().saturating_sub(1);
    let ruler = "-".repeat(widths.iter().sum::<usize>() + gaps);
    let line = |cells: Vec<&str>, is_heading: bool| {
        let last = cells.len().saturating_sub(1);
        let filled = cells.iter().enumerate().map(|(at, cell)| {
            let gap = " ".repeat(widths[at].saturating_sub(cell.width()));
            match at {
                _ if at == last => (*cell).to_owned(),
                _ if columns[at].right && !is_heading => format!("{gap}{cell}"),
                _ => format!("{cell}{gap}"),
            }
        });
        filled.collect::<Vec<_>>().join(layout.between())
    };
    let headings = line(columns.iter().map(|column| column.heading).collect(), true);
    let mut text = format!("{ruler}\n{headings}\n{ruler}\n");
    for row in rows {
        text.push_str(&line(row.iter().map(String::as_str).collect(), false));
        text.push('\n');
        if layout == Layout::Bars {
            text.push_str(&format!("{ruler}\n"));
        }
    }
    text
}
