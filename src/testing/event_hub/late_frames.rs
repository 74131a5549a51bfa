//! Keeps from the AMQP engine what a client sends in a session that it has ended.
//!
//! The JavaScript client may end a session while events are on their way to it, and then still settles them; the Python
//! client ends a session before it detaches its links. Both get along with the service so. The AMQP library here would close
//! the whole connection with `amqp:not-found`, upon which the JavaScript client, closing, waits for ever.

use std::collections::HashSet;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, copy};

const BEGIN: u8 = 0x11;
const END: u8 = 0x17;
/// Belongs to the connection, though it comes on a channel, too.
const CLOSE: u8 = 0x18;

/// A frame's size, the offset of its body in words of four bytes, its kind, and its channel.
const HEADER: usize = 8;
/// The kind of all frames but those of SASL.
const AMQP_FRAME: u8 = 0;

/// Passes everything on, frame by frame, but what comes late. Ends with the client.
pub(super) async fn keep_back(
    from_client: impl AsyncRead + Unpin,
    to_engine: &mut (impl AsyncWrite + Unpin),
    longest: usize,
) -> io::Result<()> {
    let mut from_client = BufReader::new(from_client);
    let mut ended = HashSet::new();
    loop {
        let mut frame = vec![0; HEADER];
        from_client.read_exact(&mut frame).await?;
        let length = length(&frame);
        if !(HEADER..=longest).contains(&length) {
            // This is no AMQP any more, as the engine will say.
            to_engine.write_all(&frame).await?;
            return copy(&mut from_client, to_engine).await.map(drop);
        }
        frame.resize(length, 0);
        from_client.read_exact(&mut frame[HEADER..]).await?;
        if is_in_time(&frame, &mut ended) {
            to_engine.write_all(&frame).await?;
        }
    }
}

/// With a protocol header, which is as long as a frame's, no frame comes.
fn length(header: &[u8]) -> usize {
    match *header {
        [b'A', b'M', b'Q', b'P', ..] => HEADER,
        [a, b, c, d, ..] => usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX),
        _ => 0,
    }
}

fn is_in_time(frame: &[u8], ended: &mut HashSet<[u8; 2]>) -> bool {
    let &[_, _, _, _, offset, AMQP_FRAME, high, low, ..] = frame else { return true };
    let channel = [high, low];
    let performative = match frame.get(usize::from(offset) * 4..) {
        Some([0, 0x53, descriptor, ..] | [0, 0x80, _, _, _, _, _, _, _, descriptor, ..]) => *descriptor,
        _ => return true,
    };
    match performative {
        BEGIN => {
            ended.remove(&channel);
            true
        }
        END => ended.insert(channel),
        CLOSE => true,
        _ => !ended.contains(&channel),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISPOSITION: u8 = 0x15;

    fn frame(channel: u8, performative: u8) -> Vec<u8> {
        vec![0, 0, 0, 12, 2, 0, 0, channel, 0, 0x53, performative, 0x45]
    }

    async fn kept(sent: &[Vec<u8>]) -> Vec<u8> {
        let mut passed = Vec::new();
        keep_back(sent.concat().as_slice(), &mut passed, 100).await.expect_err("the end of what was sent");
        passed
    }

    #[tokio::test]
    async fn what_comes_after_the_end_of_its_session_is_kept_back_and_nothing_else() {
        let protocol = b"AMQP\x00\x01\x00\x00".to_vec();
        let empty = vec![0, 0, 0, 8, 2, 0, 0, 0];
        let before = [protocol, frame(0, BEGIN), frame(1, BEGIN), empty.clone(), frame(1, DISPOSITION), frame(1, END)];
        let late = [frame(1, DISPOSITION), frame(1, END)];
        let again = [frame(0, DISPOSITION), empty, frame(1, BEGIN), frame(1, DISPOSITION)];
        let after = [&again[..], &[frame(0, END), frame(0, CLOSE)]].concat();
        assert_eq!(kept(&[&before[..], &late, &after].concat()).await, [before.concat(), after.concat()].concat());
    }

    #[tokio::test]
    async fn what_is_no_amqp_is_passed_on() {
        let mut passed = Vec::new();
        keep_back(&b"GET / HTTP/1.1\r\n"[..], &mut passed, 100).await.expect("copied");
        assert_eq!(passed, b"GET / HTTP/1.1\r\n");
    }
}
