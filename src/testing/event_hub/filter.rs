//! Changes and drops frames between a client and the AMQP engine.

use std::sync::Arc;

use fe2o3_amqp_types::performatives::Performative;

use super::frames::{Fate, Frame, MAX_FRAME_SIZE};
use super::late_frames::LateFrames;
use super::payloads::Payloads;
use super::served::Served;

/// The maximum frame size of the engine, in bytes. The filter makes the frames of a client longer.
pub(super) const ENGINE_FRAME_SIZE: u32 = MAX_FRAME_SIZE + 1024;

/// The filter of a connection.
#[derive(Default)]
pub(super) struct Filter {
    late_frames: LateFrames,
    payloads: Payloads,
}

impl Filter {
    pub(super) fn new(served: Arc<Served>) -> Self {
        Self { late_frames: LateFrames::new(served), payloads: Payloads::default() }
    }

    /// Decides the fate of a frame from the client.
    pub(super) fn judge_client(&mut self, frame: &mut Frame<'_>) -> Fate {
        let fate = self.late_frames.judge_client(frame.channel, &mut frame.performative);
        fate.and(self.payloads.judge_client(frame))
    }

    /// Decides the fate of a frame from the engine.
    pub(super) fn judge_engine(&mut self, frame: &mut Frame<'_>) -> Fate {
        if let Performative::Open(open) = &mut frame.performative {
            open.max_frame_size = MAX_FRAME_SIZE.into();
            return Fate::Rewritten;
        }
        let fate = self.late_frames.judge_engine(frame.channel, &mut frame.performative);
        fate.and(self.payloads.judge_engine(frame))
    }
}
