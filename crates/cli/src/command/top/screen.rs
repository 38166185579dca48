//! The screen: what is looked at, and how it is drawn. Knows no server and no terminal.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use muster_api::model::printable;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, TableState};
use unicode_width::UnicodeWidthStr;

use super::panel::{self, ALL, JOBS, NODES, Panel, QUEUE, QUOTA};
use super::picture::Picture;
use crate::terminal::Colour;

/// From this size on all parts are shown at once.
const WIDE: (u16, u16) = (110, 20);
/// A column is no wider than this: one long name must not push the others out.
const COLUMN: usize = 28;
/// How many lines Page Up and Page Down go.
const PAGE: u16 = 10;

#[derive(Default)]
pub(super) struct Screen {
    focus: usize,
    sorted: [Option<usize>; ALL],
    is_reversed: [bool; ALL],
    tables: [TableState; ALL],
    columns: [usize; ALL],
    filter: String,
    is_typing: bool,
    is_over: bool,
}

impl Screen {
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    pub fn on_key(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            self.is_over = true;
        } else if self.is_typing {
            self.on_typed(key.code);
        } else {
            self.on_command(key.code);
        }
    }

    fn on_typed(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(letter) => self.filter.push(letter),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => (self.is_typing, self.filter) = (false, String::new()),
            _ => {}
        }
    }

    fn on_command(&mut self, code: KeyCode) {
        let focus = self.focus;
        let table = &mut self.tables[focus];
        match code {
            KeyCode::Char('q') => self.is_over = true,
            KeyCode::Esc if self.filter.is_empty() => self.is_over = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Tab | KeyCode::Right => self.focus = (focus + 1) % ALL,
            KeyCode::BackTab | KeyCode::Left => self.focus = (focus + ALL - 1) % ALL,
            KeyCode::Down | KeyCode::Char('j') => table.select_next(),
            KeyCode::Up | KeyCode::Char('k') => table.select_previous(),
            KeyCode::PageDown => table.scroll_down_by(PAGE),
            KeyCode::PageUp => table.scroll_up_by(PAGE),
            KeyCode::Home => table.select_first(),
            KeyCode::End => table.select_last(),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('r') => self.is_reversed[focus] ^= true,
            KeyCode::Char('s') => {
                // After the last column, as the server has it.
                let next = self.sorted[focus].map_or(0, |column| column + 1);
                self.sorted[focus] = Some(next).filter(|column| *column < self.columns[focus]);
            }
            _ => {}
        }
    }

    pub fn draw(&mut self, frame: &mut Frame, picture: &Picture) {
        let mut panels = panel::of(picture);
        for (at, panel) in panels.iter_mut().enumerate() {
            self.columns[at] = panel.headings.len();
            if !self.filter.is_empty() {
                panel.filter(&self.filter);
            }
            match self.sorted[at] {
                Some(column) => panel.sort(column, self.is_reversed[at]),
                None if self.is_reversed[at] => panel.rows.reverse(),
                None => {}
            }
        }
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)])
                .areas(frame.area());
        frame.render_widget(Paragraph::new(self.header(picture)), head);
        frame.render_widget(Paragraph::new(self.footer()), foot);
        for (at, area) in self.places(body) {
            self.draw_panel(frame, area, at, &panels[at]);
        }
    }

    /// Which parts are where: all of them, if there is room, or else the one that is looked at.
    fn places(&self, body: Rect) -> Vec<(usize, Rect)> {
        if body.width < WIDE.0 || body.height < WIDE.1 {
            return vec![(self.focus, body)];
        }
        let half = [Constraint::Percentage(50), Constraint::Percentage(50)];
        let thirds = [Constraint::Percentage(60), Constraint::Percentage(40)];
        let [top, bottom] = Layout::vertical(half).areas(body);
        let [nodes, quota] = Layout::horizontal(thirds).areas(top);
        let [queue, jobs] = Layout::horizontal(half).areas(bottom);
        vec![(NODES, nodes), (QUOTA, quota), (QUEUE, queue), (JOBS, jobs)]
    }

    fn draw_panel(&mut self, frame: &mut Frame, area: Rect, at: usize, panel: &Panel) {
        let is_focused = at == self.focus;
        let border = if is_focused { Style::new().fg(Color::Cyan) } else { Style::new().fg(Color::DarkGray) };
        let block = Block::bordered().title(format!(" {} ", panel.title)).border_style(border);
        let heading = |(column, text): (usize, &&'static str)| match self.sorted[at] {
            Some(sorted) if sorted == column => {
                Cell::from(format!("{text}{}", if self.is_reversed[at] { "^" } else { "v" }))
            }
            _ => Cell::from(*text),
        };
        let head = Row::new(panel.headings.iter().enumerate().map(heading))
            .style(Style::new().add_modifier(Modifier::BOLD));
        let row = |row: &panel::Row| {
            let style = row.colour.map_or_else(Style::new, |colour| Style::new().fg(painted(colour)));
            Row::new(row.cells.clone()).style(style)
        };
        let table = Table::new(panel.rows.iter().map(row), widths(panel)).header(head).block(block);
        let marked = if is_focused { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        frame.render_stateful_widget(table.row_highlight_style(marked), area, &mut self.tables[at]);
    }

    fn header(&self, picture: &Picture) -> Line<'static> {
        match &picture.trouble {
            Some(trouble) => Line::styled(printable::one_line(trouble), Style::new().fg(Color::Red)),
            None => {
                let names = ["Nodes", "Queue", "Jobs", "Quota"];
                let name = |(at, name): (usize, &&str)| {
                    if at == self.focus { format!("[{name}]") } else { format!(" {name} ") }
                };
                let names: Vec<String> = names.iter().enumerate().map(name).collect();
                Line::from(format!("muster top  {}", names.join(" ")))
            }
        }
    }

    fn footer(&self) -> Line<'static> {
        let dim = Style::new().fg(Color::DarkGray);
        match (self.is_typing, self.filter.is_empty()) {
            (true, _) => Line::from(format!("filter: {}_   Enter keeps it, Esc takes it away", self.filter)),
            (false, false) => Line::from(format!("filter: {}   Esc takes it away, q leaves", self.filter)),
            (false, true) => {
                Line::styled("Tab part  Up/Down line  s sort  r reverse  / filter  q leave", dim)
            }
        }
    }
}

/// As wide as what is in them; the last has the rest.
fn widths(panel: &Panel) -> Vec<Constraint> {
    let last = panel.headings.len().saturating_sub(1);
    let width = |(column, heading): (usize, &&str)| {
        let cells = panel.rows.iter().filter_map(|row| row.cells.get(column)).map(|cell| cell.width());
        let widest = cells.max().unwrap_or(0).min(COLUMN).max(heading.width() + 1);
        if column == last { Constraint::Fill(1) } else { Constraint::Length(widest as u16) }
    };
    panel.headings.iter().enumerate().map(width).collect()
}

fn painted(colour: Colour) -> Color {
    match colour {
        Colour::Red => Color::Red,
        Colour::Green => Color::Green,
        Colour::Yellow => Color::Yellow,
        Colour::Blue => Color::Blue,
        Colour::Magenta => Color::Magenta,
        Colour::Cyan => Color::Cyan,
        Colour::Dim => Color::DarkGray,
    }
}

#[cfg(test)]
mod tests;
