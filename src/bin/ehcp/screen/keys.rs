//! What the keys do: pure.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use eventhubs_checkpoint::store::NameCase;

use super::state::{OtherNameCase, State, View};

/// What a key demands of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    None,
    Quit,
    /// Save the checkpoints in a file.
    Export,
    /// Read the records under names in this letter case.
    ReadOtherNameCase(NameCase),
}

/// Where to move.
#[derive(Clone, Copy)]
enum Move {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
}

impl Move {
    fn of(key: KeyCode) -> Option<Self> {
        Some(match key {
            KeyCode::Up | KeyCode::Char('k') => Self::Up,
            KeyCode::Down | KeyCode::Char('j') => Self::Down,
            KeyCode::PageUp => Self::PageUp,
            KeyCode::PageDown | KeyCode::Char(' ') => Self::PageDown,
            KeyCode::Home => Self::First,
            KeyCode::End => Self::Last,
            _ => return None,
        })
    }

    fn from(self, place: usize, last: usize, page: usize) -> usize {
        let place = match self {
            Self::Up => place.saturating_sub(1),
            Self::Down => place + 1,
            Self::PageUp => place.saturating_sub(page.max(1)),
            Self::PageDown => place + page.max(1),
            Self::First => 0,
            Self::Last => last,
        };
        place.min(last)
    }
}

impl State {
    /// Changes what is shown, and returns what else is to be done.
    pub fn on_key(&mut self, key: KeyEvent) -> Effect {
        if key.kind == KeyEventKind::Release {
            return Effect::None;
        }
        self.clear_message();
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Effect::Quit } else { Effect::None };
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Effect::None;
        }
        match key.code {
            KeyCode::Char('q') => return Effect::Quit,
            KeyCode::Char('e') => return Effect::Export,
            KeyCode::Char('?') if self.view != View::Help => self.show(View::Help),
            KeyCode::Char('?') | KeyCode::Esc | KeyCode::Backspace if self.view != View::Partitions => {
                self.show(View::Partitions);
            }
            KeyCode::Enter => return self.enter(),
            KeyCode::Char('r') => self.show_reset(),
            key => {
                if let Some(to) = Move::of(key) {
                    self.go(to);
                } else if self.view == View::Partitions {
                    self.change_table(key);
                }
            }
        }
        Effect::None
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char(letter) => self.filter.push(letter),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            key => {
                if let Some(to) = Move::of(key) {
                    self.go(to);
                }
            }
        }
    }

    fn change_table(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Esc => self.filter.clear(),
            _ => {}
        }
    }

    fn show(&mut self, view: View) {
        self.view = view;
        self.scroll = 0;
    }

    /// Shows a partition, or goes back to all.
    fn enter(&mut self) -> Effect {
        if self.view != View::Partitions {
            self.show(View::Partitions);
            return Effect::None;
        }
        let Some(partition) = self.selected_partition() else { return Effect::None };
        self.show(View::Partition(partition));
        match self.group().map(|group| &group.group) {
            Some(group) if group.other_name_case => {
                let other = group.blob_name_case.other();
                self.other_name_case = Some(OtherNameCase::Reading);
                Effect::ReadOtherNameCase(other)
            }
            _ => {
                self.other_name_case = None;
                Effect::None
            }
        }
    }

    fn show_reset(&mut self) {
        let partition = match &self.view {
            View::Partition(partition) => Some(partition.clone()),
            View::Partitions => self.selected_partition(),
            View::Reset(_) | View::Help => None,
        };
        if let Some(partition) = partition {
            self.show(View::Reset(partition));
        }
    }

    fn go(&mut self, to: Move) {
        let page = self.drawn.page;
        if self.view == View::Partitions {
            self.select(|place, last| to.from(place, last, page));
        } else {
            self.scroll = to.from(self.scroll, self.drawn.lines.saturating_sub(page), page);
        }
    }
}
