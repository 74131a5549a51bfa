//! What the keys do: pure.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use eventhubs_checkpoint::store::NameCase;

use super::state::{OtherNameCase, ScreenState, ScreenView};

/// What a key demands of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyEffect {
    None,
    Quit,
    /// Save the checkpoints in a file.
    Export,
    /// Read the records under names in this blob-name casing.
    ReadOtherNameCase(NameCase),
}

/// Where to move.
#[derive(Clone, Copy)]
enum Movement {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
}

impl Movement {
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

    fn apply_to(self, place: usize, last: usize, page: usize) -> usize {
        match self {
            Self::Up => place.saturating_sub(1),
            Self::Down => place + 1,
            Self::PageUp => place.saturating_sub(page.max(1)),
            Self::PageDown => place + page.max(1),
            Self::First => 0,
            Self::Last => last,
        }
        .min(last)
    }
}

impl ScreenState {
    /// Changes what is shown, and returns what else is to be done.
    pub fn on_key(&mut self, key: KeyEvent) -> KeyEffect {
        if key.kind == KeyEventKind::Release {
            return KeyEffect::None;
        }
        self.clear_message();
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { KeyEffect::Quit } else { KeyEffect::None };
        }
        if self.is_typing {
            self.type_filter(key.code);
            return KeyEffect::None;
        }
        match key.code {
            KeyCode::Char('q') => return KeyEffect::Quit,
            KeyCode::Char('e') => return KeyEffect::Export,
            KeyCode::Char('?') if self.view != ScreenView::Help => self.show_view(ScreenView::Help),
            KeyCode::Char('?') | KeyCode::Esc | KeyCode::Backspace if self.view != ScreenView::Partitions => {
                self.show_view(ScreenView::Partitions);
            }
            KeyCode::Enter => return self.toggle_partition(),
            KeyCode::Char('r') => self.show_reset(),
            key => {
                if let Some(to) = Movement::of(key) {
                    self.move_to(to);
                } else if self.view == ScreenView::Partitions {
                    self.change_table(key);
                }
            }
        }
        KeyEffect::None
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
                if let Some(to) = Movement::of(key) {
                    self.move_to(to);
                }
            }
        }
    }

    fn change_table(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char('s') => self.sort = self.sort.next_order(),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Esc => self.filter.clear(),
            _ => {}
        }
    }

    fn show_view(&mut self, view: ScreenView) {
        self.view = view;
        self.scroll = 0;
    }

    /// Shows a partition, or goes back to all.
    fn toggle_partition(&mut self) -> KeyEffect {
        if self.view != ScreenView::Partitions {
            self.show_view(ScreenView::Partitions);
            return KeyEffect::None;
        }
        let Some(partition) = self.selected_partition() else { return KeyEffect::None };
        self.show_view(ScreenView::Partition(partition));
        match self.group().map(|group| &group.group) {
            Some(group) if group.other_name_case => {
                let other = group.blob_name_case.other();
                self.other_name_case = Some(OtherNameCase::Reading);
                KeyEffect::ReadOtherNameCase(other)
            }
            _ => {
                self.other_name_case = None;
                KeyEffect::None
            }
        }
    }

    fn show_reset(&mut self) {
        let partition = match &self.view {
            ScreenView::Partition(partition) => Some(partition.clone()),
            ScreenView::Partitions => self.selected_partition(),
            ScreenView::Reset(_) | ScreenView::Help => None,
        };
        if let Some(partition) = partition {
            self.show_view(ScreenView::Reset(partition));
        }
    }

    fn move_to(&mut self, to: Movement) {
        let page = self.drawn.page;
        if self.view == ScreenView::Partitions {
            self.select(|place, last| to.apply_to(place, last, page));
        } else {
            self.scroll = to.apply_to(self.scroll, self.drawn.lines.saturating_sub(page), page);
        }
    }
}
