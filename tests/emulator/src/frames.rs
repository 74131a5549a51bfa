//! Parses the frames in a stream of AMQP bytes.

use fe2o3_amqp_types::performatives::Performative;

use super::encoding::value_length;

/// The maximum frame size that clients are told, in bytes.
pub(super) const MAX_FRAME_SIZE: u32 = 64 * 1024;

/// The length of a frame header: the frame's size, the offset of its body in words of four bytes, its type and its
/// channel.
const HEADER: usize = 8;
/// The type of all frames except those of SASL.
const AMQP_FRAME: u8 = 0;

/// The fate of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Passed,
    /// Replaced by its changed parts.
    Rewritten,
    Dropped,
}

impl Fate {
    /// Returns the fate of a frame with these two.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Dropped, _) | (_, Self::Dropped) => Self::Dropped,
            (Self::Rewritten, _) | (_, Self::Rewritten) => Self::Rewritten,
            (Self::Passed, Self::Passed) => Self::Passed,
        }
    }
}

/// A frame with a performative.
pub(super) struct Frame<'a> {
    pub(super) channel: u16,
    pub(super) performative: Performative,
    /// Bytes to insert before the payload.
    pub(super) prefix: Vec<u8>,
    /// The bytes after the performative: a piece of a message.
    pub(super) payload: &'a [u8],
    /// The whole frame.
    pub(super) bytes: &'a [u8],
}

/// One direction of a connection, whose bytes arrive in pieces.
pub(super) struct Frames {
    /// The received part of an incomplete frame.
    begun: Vec<u8>,
    longest: usize,
    /// The stream is not AMQP, which the receiver will report.
    foreign: bool,
}

impl Frames {
    /// Creates a parser for a sender with this maximum frame size.
    pub(super) fn up_to(longest: usize) -> Self {
        Self { begun: Vec::new(), longest, foreign: false }
    }

    /// Processes the next piece, and returns the bytes to pass on of all complete frames. `judge` decides the fate of
    /// each frame with a performative.
    pub(super) fn pass(&mut self, piece: &[u8], mut judge: impl FnMut(&mut Frame<'_>) -> Fate) -> Vec<u8> {
        self.begun.extend_from_slice(piece);
        let mut passed = Vec::with_capacity(self.begun.len());
        let mut done = 0;
        while let Some(length) = self.next_frame(done) {
            let bytes = &self.begun[done..done + length];
            done += length;
            let decoded = if self.foreign { None } else { decode(bytes) };
            let Some(mut frame) = decoded else {
                passed.extend_from_slice(bytes);
                continue;
            };
            match judge(&mut frame) {
                Fate::Passed => passed.extend_from_slice(bytes),
                Fate::Rewritten => passed.extend(encode(&frame).unwrap_or_else(|| bytes.to_vec())),
                Fate::Dropped => {}
            }
        }
        self.begun.drain(..done);
        passed
    }

    /// Returns the length of the frame that starts at this index, if it is complete, or of the rest if it is not AMQP.
    fn next_frame(&mut self, at: usize) -> Option<usize> {
        let rest = &self.begun[at..];
        if !self.foreign {
            let length = length(*rest.first_chunk()?);
            self.foreign = !(HEADER..=self.longest).contains(&length);
            if !self.foreign {
                return (length <= rest.len()).then_some(length);
            }
        }
        (!rest.is_empty()).then_some(rest.len())
    }
}

/// Returns the length of a frame. A protocol header has the length of a frame header, and no body.
fn length(header: [u8; HEADER]) -> usize {
    match header {
        [b'A', b'M', b'Q', b'P', ..] => HEADER,
        [a, b, c, d, ..] => usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX),
    }
}

/// Returns the parts of an AMQP frame. The receiver reports unreadable frames.
fn decode(frame: &[u8]) -> Option<Frame<'_>> {
    let &[_, _, _, _, offset, AMQP_FRAME, high, low, ..] = frame else { return None };
    let body = frame.get(usize::from(offset) * 4..)?;
    let (performative, payload) = body.split_at(value_length(body)?);
    let performative = serde_amqp::from_slice(performative).ok()?;
    Some(Frame { channel: u16::from_be_bytes([high, low]), performative, prefix: Vec::new(), payload, bytes: frame })
}

fn encode(frame: &Frame<'_>) -> Option<Vec<u8>> {
    let performative = serde_amqp::to_vec(&frame.performative).ok()?;
    let length = HEADER + performative.len() + frame.prefix.len() + frame.payload.len();
    let length = u32::try_from(length).ok()?.to_be_bytes();
    let [high, low] = frame.channel.to_be_bytes();
    Some([&length, &[2, AMQP_FRAME, high, low], performative.as_slice(), &frame.prefix, frame.payload].concat())
}

#[cfg(test)]
mod tests {
    use fe2o3_amqp_types::performatives::{Detach, End};

    use super::*;

    const LONGEST: usize = 100;

    fn detach(handle: u32) -> Performative {
        Performative::Detach(Detach { handle: handle.into(), closed: true, error: None })
    }

    fn frame(channel: u16, performative: Performative) -> Vec<u8> {
        encode(&Frame { channel, performative, prefix: Vec::new(), payload: b"payload", bytes: &[] }).expect("encoded")
    }

    /// Returns the bytes that pass a judge of the handles in detaches. Checks that the result does not depend on the
    /// size of the pieces.
    fn passed(sent: &[u8]) -> Vec<u8> {
        let judge = |frame: &mut Frame<'_>| match &mut frame.performative {
            Performative::Detach(Detach { handle, .. }) if handle.0 == 1 => Fate::Dropped,
            Performative::Detach(Detach { handle, .. }) if handle.0 == 2 => {
                handle.0 = frame.channel.into();
                Fate::Rewritten
            }
            _ => Fate::Passed,
        };
        let whole = Frames::up_to(LONGEST).pass(sent, judge);
        for size in 1..sent.len() {
            let mut frames = Frames::up_to(LONGEST);
            let pieces: Vec<_> = sent.chunks(size).flat_map(|piece| frames.pass(piece, judge)).collect();
            assert_eq!(pieces, whole, "in pieces of {size}");
        }
        whole
    }

    #[test]
    fn frames_are_passed_rewritten_or_dropped() {
        let end = frame(7, Performative::End(End { error: None }));
        let before = [b"AMQP\x00\x01\x00\x00".to_vec(), frame(7, detach(0)), vec![0, 0, 0, 8, 2, AMQP_FRAME, 0, 0]];
        let sent = [&before[..], &[frame(7, detach(1)), frame(7, detach(2)), end.clone()]].concat();
        assert_eq!(passed(&sent.concat()), [&before[..], &[frame(7, detach(7)), end]].concat().concat());
    }

    #[test]
    fn unreadable_frames_are_passed() {
        let unknown = vec![0, 0, 0, 12, 2, AMQP_FRAME, 0, 0, 0, 0x53, 0x99, 0x45];
        let of_sasl = vec![0, 0, 0, 12, 2, 1, 0, 0, 0, 0x53, 0x16, 0x45];
        let sent = [unknown, of_sasl].concat();
        assert_eq!(passed(&sent), sent);
    }

    #[test]
    fn other_protocols_are_passed_with_all_that_follows() {
        for foreign in [b"GET / HTTP/1.1\r\n".to_vec(), vec![0, 0, 0, 7, 2, 0, 0, 0]] {
            let sent = [foreign, frame(0, detach(1))].concat();
            assert_eq!(passed(&sent), sent);
        }
    }
}
