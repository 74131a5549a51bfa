//! Draws the state.

use std::collections::BTreeMap;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, TableState, Wrap};

use super::columns::{SPACING, ScreenColumn, choose_columns};
use super::detail::partition_lines;
use super::events::{change_tone, format_change};
use super::headline::{break_lines, headline_parts};
use super::pages::{help_lines, reset_lines};
use super::row::PartitionRow;
use super::state::{DrawnSize, ScreenState, ScreenView};
use crate::output::{Tone, printable_text};

const KEYS: &str = "q quit  s sort  / filter  enter partition  e export  r reset  ? help";
const KEYS_OF_TEXT: &str = "q quit  Esc back  arrows scroll  e export";
/// The most lines of a failure.
const FAILURE: u16 = 2;
/// The most lines of events, and the part of the screen that they may take.
const EVENTS: u16 = 8;
const PART_OF_EVENTS: u16 = 4;

/// Draws the screen.
pub fn draw_screen(frame: &mut Frame<'_>, state: &ScreenState) -> DrawnSize {
    let area = frame.area();
    let theme = Theme { colors: state.settings.colors };
    let headline = match (state.group(), state.now()) {
        (Some(group), Some(now)) => {
            let parts = headline_parts(group, &state.history, now);
            break_lines(&parts, usize::from(area.width)).into_iter().map(Line::from).collect()
        }
        _ => vec![Line::from("ehcp watch")],
    };
    let notices = list_notices(state, area.width, theme);
    let [top, middle, bottom, keys] = Layout::vertical([
        Constraint::Max(to_u16(headline.len())),
        Constraint::Fill(1),
        Constraint::Max(notices.iter().map(|(_, height)| height).sum()),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(headline).style(Style::new().add_modifier(Modifier::BOLD)), top);
    let drawn = draw_middle(frame, state, middle, theme);
    draw_notices(frame, notices, bottom);
    let key_line = if state.is_typing {
        format!("filter: {}_  enter keeps it, Esc removes it", state.filter)
    } else if state.view == ScreenView::Partitions {
        KEYS.to_owned()
    } else {
        KEYS_OF_TEXT.to_owned()
    };
    frame.render_widget(Paragraph::new(key_line).style(Style::new().add_modifier(Modifier::DIM)), keys);
    drawn
}

/// How things look.
#[derive(Clone, Copy)]
struct Theme {
    colors: bool,
}

impl Theme {
    fn tone_style(self, tone: Tone) -> Style {
        match tone {
            _ if !self.colors => Style::new(),
            Tone::Plain => Style::new(),
            Tone::Good => Style::new().fg(Color::Green),
            Tone::Warning => Style::new().fg(Color::Yellow),
            Tone::Bad => Style::new().fg(Color::Red),
        }
    }
}

fn to_u16(lines: usize) -> u16 {
    u16::try_from(lines).unwrap_or(u16::MAX)
}

/// Returns what is to be said above the keys, and how many lines that has.
fn list_notices(state: &ScreenState, width: u16, theme: Theme) -> Vec<(Paragraph<'static>, u16)> {
    let failures = state.failures().into_iter().map(|failure| (failure, Tone::Bad));
    let messages = state.message().map(|message| (printable_text(message), Tone::Good));
    failures
        .chain(messages)
        .map(|(text, tone)| {
            let lines = to_u16(text.chars().count().div_ceil(usize::from(width.max(1))));
            let paragraph = Paragraph::new(text).style(theme.tone_style(tone)).wrap(Wrap { trim: true });
            (paragraph, lines.clamp(1, FAILURE))
        })
        .collect()
}

fn draw_notices(frame: &mut Frame<'_>, notices: Vec<(Paragraph<'static>, u16)>, area: Rect) {
    let mut top = area.y;
    for (notice, height) in notices {
        let height = height.min(area.bottom().saturating_sub(top));
        frame.render_widget(notice, Rect { y: top, height, ..area });
        top += height;
    }
}

fn draw_middle(frame: &mut Frame<'_>, state: &ScreenState, area: Rect, theme: Theme) -> DrawnSize {
    let lines = match &state.view {
        ScreenView::Help => help_lines(state),
        ScreenView::Reset(partition) => reset_lines(state, partition),
        ScreenView::Partition(partition) => partition_lines(state, state.row(partition).as_ref()),
        ScreenView::Partitions if state.group().is_none() => vec!["reading the group".to_owned()],
        ScreenView::Partitions => return draw_group(frame, state, area, theme),
    };
    draw_text(frame, state, &lines, area)
}

fn draw_text(frame: &mut Frame<'_>, state: &ScreenState, lines: &[String], area: Rect) -> DrawnSize {
    let text: Text<'_> = lines.iter().map(|line| Line::from(printable_text(line))).collect();
    let paragraph = Paragraph::new(text).wrap(Wrap { trim: false });
    let count = lines.iter().map(|line| line.chars().count().div_ceil(usize::from(area.width.max(1))).max(1)).sum();
    let drawn = DrawnSize { page: usize::from(area.height), lines: count };
    let first = state.scroll.min(count.saturating_sub(drawn.page));
    frame.render_widget(paragraph.scroll((to_u16(first), 0)), area);
    drawn
}

/// Draws the partitions and the events.
fn draw_group(frame: &mut Frame<'_>, state: &ScreenState, area: Rect, theme: Theme) -> DrawnSize {
    let rows = state.rows();
    let changes = state.history.changes();
    let feed = to_u16(changes.len()).min(area.height / PART_OF_EVENTS).min(EVENTS);
    let [table, rule, feed] =
        Layout::vertical([Constraint::Fill(1), Constraint::Length(1), Constraint::Length(feed)]).areas(area);
    let page = draw_table(frame, state, &rows, table, theme);
    let summary = Paragraph::new(summarize_rows(state, &rows, page));
    frame.render_widget(summary.style(Style::new().add_modifier(Modifier::DIM)), rule);
    let lines: Text<'_> = changes
        .iter()
        .skip(changes.len().saturating_sub(usize::from(feed.height)))
        .map(|change| Line::styled(printable_text(&format_change(change)), theme.tone_style(change_tone(change))))
        .collect();
    frame.render_widget(Paragraph::new(lines), feed);
    DrawnSize { page, lines: 0 }
}

/// Returns which rows are shown.
fn summarize_rows(state: &ScreenState, rows: &[PartitionRow<'_>], page: usize) -> String {
    let first = first_row(state.selection_place(rows).unwrap_or_default(), rows.len(), page);
    let last = (first + page).min(rows.len());
    let mut parts = vec![
        format!("rows {}-{last} of {}", (first + 1).min(last), rows.len()),
        format!("sorted by {}", state.sort.text()),
    ];
    if !state.filter.is_empty() {
        parts.push(format!("filter {:?}", state.filter));
    }
    parts.join("  ")
}

/// Returns the first row that is shown, so that the selected one is in the middle unless it is near an end.
fn first_row(selected: usize, rows: usize, page: usize) -> usize {
    selected.saturating_sub(page / 2).min(rows.saturating_sub(page))
}

/// Draws the rows that fit, and returns how many that are.
fn draw_table(
    frame: &mut Frame<'_>,
    state: &ScreenState,
    rows: &[PartitionRow<'_>],
    area: Rect,
    theme: Theme,
) -> usize {
    let page = usize::from(area.height.saturating_sub(1));
    let Some(now) = state.group().map(|group| group.taken_at) else { return page };
    let selected = state.selection_place(rows).unwrap_or_default();
    let first = first_row(selected, rows.len(), page);
    let shown = &rows[first..(first + page).min(rows.len())];
    // Rows that are not shown count, so that scrolling changes no column.
    let widths: BTreeMap<_, _> = ScreenColumn::ALL
        .iter()
        .map(|column| {
            let widths = rows.iter().map(|row| row.cell_text(*column, &state.history, now).chars().count());
            (*column, to_u16(widths.max().unwrap_or_default().max(column.title().len())))
        })
        .collect();
    let columns = choose_columns(|column| widths[&column], area.width);
    let header = columns.iter().map(|column| align_cell(*column, column.title()));
    let body = shown.iter().map(|row| {
        let cells = columns.iter().map(|column| {
            let text = row.cell_text(*column, &state.history, now);
            align_cell(*column, if text.is_empty() { "-" } else { &text })
        });
        TableRow::new(cells).style(theme.tone_style(row.tone()))
    });
    let table = Table::new(body, columns.iter().map(|column| Constraint::Length(widths[column])))
        .header(TableRow::new(header).style(Style::new().add_modifier(Modifier::BOLD)))
        .column_spacing(SPACING)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selection = TableState::new().with_selected((!shown.is_empty()).then(|| selected - first));
    frame.render_stateful_widget(table, area, &mut selection);
    page
}

fn align_cell(column: ScreenColumn, text: &str) -> Cell<'static> {
    let alignment = if column.is_number() { Alignment::Right } else { Alignment::Left };
    Cell::from(Text::from(printable_text(text)).alignment(alignment))
}
