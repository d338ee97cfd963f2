//! Tests of single rules of a stream.

use super::{
    CONTROLS, Config, End, How, NoIomap, Peers, Source, Stream, Violation, Write,
    simulation::{LISTS, MAPPED, RECV, Side, config, pair, settle},
};
use crate::{ControlMessage, Iomap, Message, Sge};

/// A peer that never writes to the local lists.
struct NoPeers;

impl Peers for NoPeers {
    fn target(&self, _slot: usize) -> Sge {
        Sge::default()
    }

    fn iomap(&self, _index: u16) -> Iomap {
        Iomap::default()
    }
}

const CONFIG: Config = Config {
    send_slots: 20,
    recv_slots: 16,
    send_buffer: 8192,
    recv_buffer: 8192,
    recv_addr: RECV,
    recv_key: 5,
    inline: 64,
    iomaps: 2,
    big_endian: false,
};

fn stream() -> Stream {
    Stream::new(CONFIG, Stream::conn_data(&CONFIG, LISTS, 9))
}

fn imm(write: &Write) -> Message {
    Message::parse(write.imm.expect("immediate data"))
}

fn receive(stream: &mut Stream, message: Message) -> Result<(), Violation> {
    stream.received(message.imm(), 0, &NoPeers)
}

#[test]
fn private_data_lend_the_first_half() {
    let data = Stream::conn_data(&CONFIG, LISTS, 9);
    assert_eq!((data.credits, data.iomaps), (16, 2));
    assert_eq!((data.target_sgl.addr, data.target_sgl.key), (LISTS, 9));
    assert_eq!(data.target_sgl.length, 2);
    assert_eq!((data.data_buf.addr, data.data_buf.length), (RECV, 4096));
}

/// The second half is granted at once, in the second entry of the peer's target list.
#[test]
fn the_second_half_follows() {
    let mut stream = stream();
    let write = stream.next_control().expect("credits");
    assert_eq!((write.remote_addr, write.rkey), (LISTS + 16, 9));
    assert_eq!(imm(&write), Message::Credits(16));
    let Source::Here(bytes, 16) = write.source else {
        panic!("{write:?}");
    };
    let sge = Sge::from_bytes(*bytes.first_chunk().expect("16 bytes"), false);
    assert_eq!((sge.addr, sge.length, sge.key), (RECV + 4096, 4096, 5));
    assert_eq!(stream.next_control(), None);
}

#[test]
fn data_go_into_what_was_lent() {
    let mut stream = stream();
    let small = stream.send(0, 10).expect("room");
    assert_eq!(small.source, Source::Callers(10));
    assert_eq!(small.remote_addr, RECV);
    assert_eq!(imm(&small), Message::Data(10));
    let large = stream.send(0, 5000).expect("room");
    assert_eq!(large.source, Source::Staged { at: 0, len: 4086 });
    assert_eq!(large.remote_addr, RECV + 10);
    // One half is full, and the other one is not granted.
    assert_eq!(stream.send(0, 1), None);
    assert!(!stream.can_send());
}

/// The list may hold a partly written entry of the peer's next grant when another message is
/// handled.
#[test]
fn an_entry_counts_when_its_message_is_there() {
    struct Half(Sge);
    impl Peers for Half {
        fn target(&self, slot: usize) -> Sge {
            assert_eq!(slot, 1);
            self.0
        }

        fn iomap(&self, _index: u16) -> Iomap {
            Iomap::default()
        }
    }
    let whole = Sge {
        addr: RECV + 4096,
        key: 5,
        length: 4096,
    };
    let torn = Half(Sge { addr: 0, ..whole });
    let mut stream = stream();
    assert!(stream.send(0, 4096).is_some());
    stream.completed();
    let credits = |limit| Message::Credits(limit).imm();
    stream.received(credits(17), 0, &torn).expect("valid");
    assert_eq!(stream.send(0, 1), None);
    stream
        .received(credits(17), 16, &Half(whole))
        .expect("valid");
    let write = stream.send(0, 1).expect("room");
    assert_eq!(write.remote_addr, RECV + 4096);
}

/// Messages are numbered, and those beyond the credits wait.
#[test]
fn credits_limit_messages() {
    let mut stream = stream();
    for _ in 0..16 {
        assert!(stream.send(0, 1).is_some());
        stream.completed();
    }
    assert_eq!(stream.send(0, 1), None);
    receive(&mut stream, Message::Credits(17)).expect("valid");
    assert!(stream.send(0, 1).is_some());
    stream.completed();
    assert_eq!(stream.send(0, 1), None);
}

#[test]
fn the_send_queue_limits_messages() {
    let mut stream = stream();
    for _ in 0..CONFIG.send_slots - CONTROLS {
        assert!(stream.send(0, 1).is_some());
    }
    assert_eq!(stream.send(0, 1), None);
    stream.completed();
    receive(&mut stream, Message::Credits(20)).expect("valid");
    assert!(stream.send(0, 1).is_some());
}

/// Half of the credits suffices for a credit message, which is sent also if no half of the buffer
/// is free.
#[test]
fn credits_are_given_when_half_are_gone() {
    let mut stream = stream();
    stream.next_control().expect("the second half");
    for count in 1..=8 {
        receive(&mut stream, Message::Data(1)).expect("valid");
        stream.consume(1);
        assert_eq!(stream.next_control().is_some(), count == 8);
    }
    for _ in 0..8 {
        receive(&mut stream, Message::Data(1)).expect("valid");
        stream.consume(1);
    }
    let write = stream.next_control().expect("credits");
    assert_eq!(imm(&write), Message::Credits(32));
    assert_eq!(write.source, Source::Nothing);
}

/// At most four control messages are in flight.
#[test]
fn control_messages_wait_for_each_other() {
    let mut stream = stream();
    stream.next_control().expect("the second half");
    let mut given = 1;
    for _ in 0..10 {
        for _ in 0..8 {
            receive(&mut stream, Message::Data(1)).expect("valid");
            stream.consume(1);
        }
        given += u32::from(stream.next_control().is_some());
    }
    assert_eq!(given, u32::from(CONTROLS));
    assert_eq!(stream.keep_alive(), None);
    stream.completed();
    assert!(stream.next_control().is_some());
}

#[test]
fn what_breaks_the_protocol_ends_the_stream() {
    let cases: [(&[Message], Violation); 6] = [
        (&[Message::Data(4097)], Violation::Overrun),
        (&[Message::Data(4096), Message::Data(1)], Violation::Overrun),
        (&[Message::Data(1); 17], Violation::Credits),
        (&[Message::Credits(17)], Violation::Credits),
        (&[Message::Iomap(2)], Violation::Iomap),
        (
            &[Message::Control(ControlMessage::Shutdown), Message::Data(1)],
            Violation::AfterEnd,
        ),
    ];
    for (messages, violation) in cases {
        let mut stream = stream();
        let (last, before) = messages.split_last().expect("one");
        for message in before {
            receive(&mut stream, *message).expect("valid");
        }
        assert_eq!(receive(&mut stream, *last), Err(violation));
        assert_eq!(stream.end(), Some(End::Failure));
        assert_eq!(stream.next_control(), None);
        assert!(!stream.can_send());
    }
}

#[test]
fn unknown_messages_and_signs_of_life_change_nothing() {
    let mut stream = stream();
    for imm in [0x4000_0001, 0xe000_0009, 0xe000_0001, 0x2000_0000] {
        stream.received(imm, 0, &NoPeers).expect("ignored");
    }
    assert_eq!((stream.end(), stream.unread()), (None, 0));
    assert!(!stream.at_end() && stream.can_send());
}

/// An empty message gives the reader no bytes, and its credit is returned.
#[test]
fn empty_messages_are_not_the_end() {
    let mut stream = stream();
    stream.next_control().expect("the second half");
    for _ in 0..8 {
        receive(&mut stream, Message::Data(0)).expect("valid");
        assert!(stream.unread() == 0 && !stream.at_end());
    }
    let write = stream.next_control().expect("credits");
    assert_eq!(imm(&write), Message::Credits(24));
}

#[test]
fn data_that_came_before_the_end_can_be_read() {
    for word in [ControlMessage::Shutdown, ControlMessage::Disconnect] {
        let mut stream = stream();
        receive(&mut stream, Message::Data(100)).expect("valid");
        receive(&mut stream, Message::Control(word)).expect("valid");
        assert!(!stream.at_end() && stream.reading_is_over());
        assert_eq!(stream.readable(0, 1000), (0, 100));
        assert_eq!(stream.readable(40, 1000), (40, 60));
        stream.consume(100);
        assert!(stream.at_end());
        assert_eq!(stream.can_send(), word == ControlMessage::Shutdown);
    }
}

#[test]
fn who_has_nothing_more_to_send_says_so_behind_the_data() {
    let mut stream = stream();
    stream.next_control().expect("the second half");
    stream.completed();
    stream.send(0, 10).expect("room");
    stream.shutdown(How::Write);
    assert!(!stream.all_sent() && !stream.can_send());
    let write = stream.next_control().expect("a word");
    assert_eq!(imm(&write), Message::Control(ControlMessage::Shutdown));
    assert!(!stream.all_data_sent());
    stream.completed();
    assert!(stream.all_data_sent() && !stream.all_sent());
    stream.completed();
    assert!(stream.all_sent());
    assert_eq!(stream.end(), None);
    // The receiver still reads, and returns credits.
    for _ in 0..8 {
        receive(&mut stream, Message::Data(512)).expect("valid");
        stream.consume(512);
    }
    assert!(stream.next_control().is_some());
    // A repeated shutdown sends no message, but closing sends another one.
    stream.shutdown(How::Write);
    assert_eq!(stream.next_control(), None);
    stream.shutdown(How::Both);
    let write = stream.next_control().expect("a word");
    assert_eq!(imm(&write), Message::Control(ControlMessage::Disconnect));
    stream.completed();
    stream.completed();
    assert_eq!(stream.end(), Some(End::Ours));
}

/// The stream ends if both sides announce that they send no more data.
#[test]
fn two_half_closes_are_a_close() {
    let mut sides = pair([config(16, 4096, 64, false); 2]);
    settle(&mut sides);
    for side in 0..2 {
        sides[side].stream.shutdown(How::Write);
        sides[side].controls();
        settle(&mut sides);
    }
    assert_eq!(sides[0].stream.end(), Some(End::Peers));
    assert_eq!(sides[1].stream.end(), Some(End::Ours));
}

/// A side that stopped reading discards data, and the peer can continue.
#[test]
fn unread_data_is_discarded() {
    let mut sides = pair([config(16, 4096, 64, false); 2]);
    sides[0].stream.shutdown(How::Read);
    sides[0].controls();
    for _ in 0..20 {
        assert_eq!(sides[1].send(1000), 1000);
        settle(&mut sides);
    }
    assert!(sides[0].stream.at_end());
    assert_eq!(sides[1].stream.end(), None);
    sides[0].stream.shutdown(How::Write);
    sides[0].controls();
    settle(&mut sides);
    assert_eq!(sides[0].stream.end(), Some(End::Ours));
    assert_eq!(sides[1].stream.end(), Some(End::Peers));
}

/// Data that arrive after the local disconnect are no violation.
#[test]
fn data_after_our_end_are_ignored() {
    let mut stream = stream();
    stream.shutdown(How::Both);
    stream.next_control().expect("a word");
    receive(&mut stream, Message::Data(5)).expect("valid");
    stream.completed();
    assert_eq!(stream.end(), Some(End::Ours));
    receive(&mut stream, Message::Data(5)).expect("ignored");
    assert_eq!(stream.unread(), 0);
}

#[test]
fn signs_of_life_are_sent_in_silence_only() {
    let mut stream = stream();
    stream.next_control().expect("the second half");
    assert_eq!(stream.keep_alive(), None);
    stream.completed();
    let write = stream.keep_alive().expect("silence");
    assert_eq!(imm(&write), Message::Control(ControlMessage::KeepAlive));
    assert_eq!(stream.keep_alive(), None);
    stream.completed();
    stream.ended(End::Failure);
    assert_eq!(stream.keep_alive(), None);
}

fn direct(sides: &mut [Side; 2], big_endian: bool) {
    settle(sides);
    let map = |offset, addr, length| Iomap {
        offset,
        sge: Sge {
            addr,
            key: 7,
            length,
        },
    };
    assert_eq!(sides[0].stream.peers_iomaps(), 4);
    assert!(!sides[0].map(4, map(0, MAPPED, 10)));
    assert!(sides[0].map(1, map(1000, MAPPED, 100)), "{big_endian}");
    assert!(sides[0].map(3, map(u64::MAX - 50, MAPPED + 200, 50)));
    settle(sides);
    assert_eq!(sides[1].direct(&[1; 100], 1000), Some(100));
    assert_eq!(sides[1].direct(&[2; 50], u64::MAX - 50), Some(50));
    settle(sides);
    let mapped = &sides[0].memory.mapped;
    assert_eq!(mapped[..100], [1; 100]);
    assert_eq!(mapped[100..200], [0; 100]);
    assert_eq!(mapped[200..250], [2; 50]);
    for offset in [0, 999, 1100, u64::MAX - 51, u64::MAX] {
        assert_eq!(sides[1].stream.send_direct(0, 1, offset), Err(NoIomap));
    }
    assert_eq!(sides[0].stream.send_direct(0, 1, 1000), Err(NoIomap));
}

#[test]
fn mapped_memory_is_written_directly() {
    for big_endian in [[false; 2], [true; 2], [false, true]] {
        let mut sides = pair(big_endian.map(|big| config(16, 4096, 64, big)));
        direct(&mut sides, big_endian[0]);
    }
}

/// An iomap uses a credit, which is returned.
#[test]
fn iomaps_cost_credits() {
    let mut sides = pair([config(16, 4096, 64, false); 2]);
    for count in 0..100 {
        settle(&mut sides);
        assert!(sides[0].map(0, Iomap::default()), "{count}");
    }
}
