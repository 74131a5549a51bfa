//! Changes and drops frames between a client and the AMQP engine.

use std::sync::Arc;

use fe2o3_amqp_types::performatives::Performative;
use tokio::sync::Notify;

use super::attaching::Attaching;
use super::frames::{Fate, Frame, Frames, MAX_FRAME_SIZE};
use super::late_frames::LateFrames;
use super::payloads::Payloads;
use super::refused::Refused;
use super::served::Served;

/// The maximum frame size of the engine, in bytes. The filter makes the frames of a client longer.
pub(super) const ENGINE_FRAME_SIZE: u32 = MAX_FRAME_SIZE + 1024;

/// The filter of a connection.
#[derive(Default)]
pub(super) struct Filter {
    attaching: Attaching,
    late_frames: LateFrames,
    payloads: Payloads,
    refused: Refused,
    /// Frames of the client that were held back and may pass now.
    released: Vec<u8>,
    /// Notified when there are such frames.
    release: Arc<Notify>,
}

impl Filter {
    pub(super) fn new(served: Arc<Served>) -> Self {
        Self { late_frames: LateFrames::new(served), ..Self::default() }
    }

    /// Decides the fate of a frame from the client.
    pub(super) fn judge_client(&mut self, frame: &mut Frame<'_>) -> Fate {
        if self.attaching.hold(frame.channel, &frame.performative, frame.bytes) {
            return Fate::Dropped;
        }
        let fate = self.late_frames.judge_client(frame.channel, &mut frame.performative);
        fate.and(self.payloads.judge_client(frame))
    }

    /// Decides the fate of a frame from the engine.
    pub(super) fn judge_engine(&mut self, frame: &mut Frame<'_>) -> Fate {
        if let Performative::Open(open) = &mut frame.performative {
            open.max_frame_size = MAX_FRAME_SIZE.into();
            return Fate::Rewritten;
        }
        let released = self.attaching.release(frame.channel, &frame.performative);
        if !released.is_empty() {
            self.released.extend(released);
            self.release.notify_one();
        }
        let fate = self.late_frames.judge_engine(frame.channel, &mut frame.performative);
        let fate = fate.and(self.payloads.judge_engine(frame));
        fate.and(self.refused.judge_engine(frame.channel, &mut frame.performative))
    }

    /// Is notified when [`take_released`](Self::take_released) returns frames.
    pub(super) fn release(&self) -> Arc<Notify> {
        self.release.clone()
    }

    /// Returns the frames that were held back and may pass now.
    pub(super) fn take_released(&mut self) -> Vec<u8> {
        let released = std::mem::take(&mut self.released);
        Frames::up_to(MAX_FRAME_SIZE as usize).pass(&released, |frame| self.judge_client(frame))
    }
}
