//! Shows results as a table, as JSON or as CSV.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use comfy_table::presets::NOTHING;
use comfy_table::{Attribute, Cell, CellAlignment, Color as TableColor, ContentArrangement};
use serde::Serialize;
use time::OffsetDateTime;

use crate::args::{Color, Format, Global};
use crate::exit::{Failure, Result};
use crate::text;
use crate::watching::WaitingTime;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    name: &'static str,
    is_number: bool,
    is_wide: bool,
}

impl Column {
    pub const fn text(name: &'static str) -> Self {
        Self { name, is_number: false, is_wide: false }
    }

    pub const fn number(name: &'static str) -> Self {
        Self { name, is_number: true, is_wide: false }
    }

    /// Leaves the column out of the default table.
    pub const fn wide(self) -> Self {
        Self { is_wide: true, ..self }
    }
}

/// How a cell is to be understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    Good,
    Warning,
    Bad,
}

/// Rows with a value for each column. An empty one is shown as a dash.
pub struct Table {
    columns: &'static [Column],
    rows: Vec<(Vec<String>, Tone)>,
}

impl Table {
    pub fn new(columns: &'static [Column]) -> Self {
        Self { columns, rows: Vec::new() }
    }

    pub fn add_row<const N: usize>(&mut self, cells: [String; N]) {
        self.add_row_in_tone(cells, Tone::Plain);
    }

    /// Adds a row. Cells after the last column are left out.
    pub fn add_row_in_tone<const N: usize>(&mut self, cells: [String; N], tone: Tone) {
        debug_assert!(N >= self.columns.len(), "a cell for each column");
        self.rows.push((cells.into_iter().take(self.columns.len()).collect(), tone));
    }
}

/// Where results go.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    format: Format,
    color: Color,
}

impl Output {
    pub fn new(global: &Global) -> Self {
        Self { format: global.output, color: global.color }
    }

    pub fn is_for_people(self) -> bool {
        matches!(self.format, Format::Table | Format::Wide)
    }

    /// Returns how long ago something was, or when it was in a file.
    pub fn format_ago(self, now: OffsetDateTime, then: OffsetDateTime) -> String {
        if self.format == Format::Csv { text::format_time(then) } else { text::format_ago(now, then) }
    }

    /// Returns a duration, in seconds in a file.
    pub fn format_duration(self, duration: Duration) -> String {
        if self.format == Format::Csv { duration.as_secs().to_string() } else { text::format_duration(duration) }
    }

    /// Returns how long an event has waited, in seconds in a file. There it is not shown whether that is exact.
    pub fn format_waiting(self, waiting: WaitingTime) -> String {
        if self.format == Format::Csv { format!("{:.0}", waiting.seconds) } else { waiting.to_string() }
    }

    /// Shows one document and its rows: the document as JSON, each row as a line of JSON, or the table.
    pub fn show_document<T: Serialize>(self, document: &impl Serialize, rows: &[T], table: &Table) -> Result<()> {
        print_text(&match self.format {
            Format::Json => json_text(serde_json::to_string_pretty(document))?,
            Format::Ndjson => {
                rows.iter().map(|row| json_text(serde_json::to_string(row))).collect::<Result<Vec<_>>>()?.concat()
            }
            Format::Csv => format_csv(table)?,
            Format::Table | Format::Wide => self.draw_table(table),
        })
    }

    fn draw_table(self, table: &Table) -> String {
        let mut drawn = comfy_table::Table::new();
        // A program reads one line per row.
        let is_terminal = io::stdout().is_terminal();
        let arrangement = if is_terminal { ContentArrangement::Dynamic } else { ContentArrangement::Disabled };
        drawn.load_style(NOTHING).set_content_arrangement(arrangement);
        match self.color {
            Color::Always => drawn.enforce_styling(),
            Color::Never => drawn.force_no_tty(),
            Color::Auto if has_no_color() => drawn.force_no_tty(),
            Color::Auto => &mut drawn,
        };
        let is_wide = self.format == Format::Wide;
        let shown: Vec<_> = table.columns.iter().filter(|column| is_wide || !column.is_wide).collect();
        drawn.set_header(shown.iter().map(|column| Cell::new(column.name).add_attribute(Attribute::Bold)));
        for (cells, tone) in &table.rows {
            let cells = cells.iter().zip(table.columns).filter(|(_, column)| is_wide || !column.is_wide);
            drawn.add_row(cells.map(|(cell, column)| {
                let cell = if cell.is_empty() { Cell::new("-") } else { Cell::new(printable_text(cell)) };
                let cell = if column.is_number { cell.set_alignment(CellAlignment::Right) } else { cell };
                match tone {
                    Tone::Plain => cell,
                    Tone::Good => cell.fg(TableColor::Green),
                    Tone::Warning => cell.fg(TableColor::Yellow),
                    Tone::Bad => cell.fg(TableColor::Red),
                }
            }));
        }
        for (column, shown) in drawn.column_iter_mut().zip(&shown) {
            column.set_padding((0, 2));
            if shown.is_number {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        drawn.lines().map(|line| line.trim_end().to_owned() + "\n").collect::<Vec<_>>().concat()
    }
}

/// Returns whether the user wants no colors: see <https://no-color.org>.
fn has_no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Returns whether what is shown on the terminal of the standard output has colors.
#[cfg(feature = "tui")]
pub fn has_colored_screen(color: Color) -> bool {
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => !has_no_color(),
    }
}

/// Returns whether messages for people have colors.
pub fn has_colored_messages(color: Color) -> bool {
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => io::stderr().is_terminal() && !has_no_color(),
    }
}

/// Returns text that cannot steer a terminal.
pub fn printable_text(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// Writes a message to the standard error. That nothing reads it is no failure.
pub fn print_note(message: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{message}");
}

/// Writes text to the standard output.
pub fn print_text(text: &str) -> Result<()> {
    print_to_reader(text).map(drop)
}

/// Writes text to the standard output, and returns whether there is still a reader.
pub fn print_to_reader(text: &str) -> Result<bool> {
    match io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
        // The reader, such as `head`, has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(true),
    }
}

pub fn json_text(text: serde_json::Result<String>) -> Result<String> {
    text.map(|text| text + "\n").map_err(|error| Failure::failed(error.to_string()))
}

fn format_csv(table: &Table) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let header = table.columns.iter().map(|column| column.name.to_lowercase().replace('-', "_"));
    writer.write_record(header).map_err(|error| Failure::failed(error.to_string()))?;
    for (cells, _) in &table.rows {
        writer.write_record(cells).map_err(|error| Failure::failed(error.to_string()))?;
    }
    let bytes = writer.into_inner().map_err(|error| Failure::failed(error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| Failure::failed(error.to_string()))
}
