//! The terminal: prepared for the screen, and restored whatever happens.

use std::io;

use ratatui::DefaultTerminal;

use super::draw::draw_screen;
use super::state::{DrawnSize, ScreenState};

/// A terminal that shows the screen. Dropping it restores what was there before; so does a panic.
pub struct Screen(DefaultTerminal);

impl Screen {
    pub fn enter(colors: bool) -> io::Result<Self> {
        // `--color always` counts more than NO_COLOR, which the terminal library reads.
        crossterm::style::force_color_output(colors);
        match ratatui::try_init() {
            Ok(terminal) => Ok(Self(terminal)),
            Err(error) => {
                restore_terminal();
                Err(error)
            }
        }
    }

    /// Draws the state, and returns how much that was.
    pub fn draw(&mut self, state: &ScreenState) -> io::Result<DrawnSize> {
        let mut drawn = DrawnSize::default();
        self.0.draw(|frame| drawn = draw_screen(frame, state))?;
        Ok(drawn)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore_terminal();
    }
}

/// A terminal that is gone needs no restoring.
fn restore_terminal() {
    let _ = ratatui::try_restore();
}
