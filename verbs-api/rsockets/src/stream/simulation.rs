//! Two streams on a connection that delivers in order, with random delays. The tests compare the
//! bytes.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::{Config, How, Peers, SGL_SLOTS, Source, Stream, Write};
use crate::{IOMAP_LEN, Iomap, SGE_LEN, Sge};

/// Addresses of a side's memory.
pub(super) const RECV: u64 = 0x1000_0000;
pub(super) const LISTS: u64 = 0x2000_0000;
pub(super) const MAPPED: u64 = 0x3000_0000;
pub(super) const MAPPED_LEN: usize = 4096;

/// A side's memory.
pub(super) struct Memory {
    pub(super) recv: Vec<u8>,
    pub(super) lists: Vec<u8>,
    pub(super) mapped: Vec<u8>,
    big_endian: bool,
}

impl Memory {
    fn write(&mut self, addr: u64, bytes: &[u8]) {
        let places = [
            (RECV, &mut self.recv),
            (LISTS, &mut self.lists),
            (MAPPED, &mut self.mapped),
        ];
        for (base, place) in places {
            let end = base + place.len() as u64;
            if (base..end).contains(&addr) {
                let at = usize::try_from(addr - base).expect("inside");
                place[at..at + bytes.len()].copy_from_slice(bytes);
                return;
            }
        }
        panic!("{addr:#x} is not mapped");
    }
}

impl Peers for Memory {
    fn target(&self, slot: usize) -> Sge {
        let entry = &self.lists[slot * SGE_LEN..][..SGE_LEN];
        Sge::from_bytes(entry.try_into().expect("16 bytes"), self.big_endian)
    }

    fn iomap(&self, index: u16) -> Iomap {
        let at = SGL_SLOTS * SGE_LEN + usize::from(index) * IOMAP_LEN;
        let entry = &self.lists[at..][..IOMAP_LEN];
        Iomap::from_bytes(entry.try_into().expect("24 bytes"), self.big_endian)
    }
}

/// One side with its memory and its posted writes.
pub(super) struct Side {
    pub(super) stream: Stream,
    pub(super) memory: Memory,
    send: Vec<u8>,
    posted: VecDeque<(Write, Vec<u8>)>,
    arrived: usize,
    written: u64,
    read: u64,
}

/// Returns the byte at a position of a stream.
fn pattern(number: u64) -> u8 {
    number.wrapping_mul(0x9e37_79b9).to_le_bytes()[3]
}

impl Side {
    fn post(&mut self, write: Write, callers: &[u8]) {
        let bytes = match write.source {
            Source::Nothing => Vec::new(),
            Source::Here(bytes, len) => bytes[..len].to_vec(),
            Source::Callers(len) => callers[..len as usize].to_vec(),
            Source::Staged { at, len } => {
                let (at, len) = (at as usize, len as usize);
                self.send[at..at + len].copy_from_slice(&callers[..len]);
                // The bytes are read later: the space in the buffer must not be reused until then.
                Vec::new()
            }
        };
        self.posted.push_back((write, bytes));
    }

    pub(super) fn controls(&mut self) {
        while let Some(write) = self.stream.next_control() {
            self.post(write, &[]);
        }
    }

    pub(super) fn send(&mut self, len: usize) -> usize {
        let mut sent = 0;
        while sent < len {
            let Some(write) = self.stream.send(sent, len - sent) else {
                break;
            };
            let taken = write.taken() as usize;
            let bytes: Vec<u8> = (0..taken as u64)
                .map(|ahead| pattern(self.written + ahead))
                .collect();
            self.post(write, &bytes);
            self.written += taken as u64;
            sent += taken;
        }
        sent
    }

    pub(super) fn direct(&mut self, bytes: &[u8], offset: u64) -> Option<usize> {
        let mut sent = 0;
        while sent < bytes.len() {
            let write = self
                .stream
                .send_direct(sent, bytes.len() - sent, offset + sent as u64)
                .ok()??;
            let taken = write.taken() as usize;
            self.post(write, &bytes[sent..sent + taken]);
            sent += taken;
        }
        Some(sent)
    }

    pub(super) fn map(&mut self, index: u16, map: Iomap) -> bool {
        let write = self.stream.send_iomap(index, map);
        if let Some(write) = write {
            self.post(write, &[]);
        }
        write.is_some()
    }

    pub(super) fn read(&mut self, len: usize) -> usize {
        let mut done = 0;
        while done < len {
            let (at, contiguous) = self.stream.readable(0, len - done);
            if contiguous == 0 {
                break;
            }
            for byte in &self.memory.recv[at as usize..(at + contiguous) as usize] {
                assert_eq!(*byte, pattern(self.read), "byte {}", self.read);
                self.read += 1;
            }
            self.stream.consume(contiguous);
            done += contiguous as usize;
        }
        self.controls();
        done
    }

    /// Returns the bytes of a posted write.
    fn bytes_of<'a>(&'a self, (write, bytes): &'a (Write, Vec<u8>)) -> &'a [u8] {
        match write.source {
            Source::Staged { at, len } => &self.send[at as usize..(at + len) as usize],
            _ => bytes,
        }
    }

    /// Writes the second half of each undelivered write. Bytes may be in place before their message
    /// arrives, and only some of them.
    fn get_ahead(&self, to: &mut Self) {
        for posted in self.posted.iter().skip(self.arrived) {
            let bytes = self.bytes_of(posted);
            let half = bytes.len() / 2;
            if half > 0 {
                to.memory
                    .write(posted.0.remote_addr + half as u64, &bytes[half..]);
            }
        }
    }

    /// Delivers the oldest undelivered write.
    fn deliver(&mut self, to: &mut Self) -> bool {
        let Some(posted) = self.posted.get(self.arrived) else {
            return false;
        };
        let (write, bytes) = (posted.0, self.bytes_of(posted));
        if !bytes.is_empty() {
            to.memory.write(write.remote_addr, bytes);
        }
        if let Some(imm) = write.imm {
            let len = u32::try_from(bytes.len()).expect("a message");
            to.stream
                .received(imm, len, &to.memory)
                .expect("no violation");
        }
        self.arrived += 1;
        to.controls();
        true
    }

    /// Completes the oldest delivered write.
    fn complete(&mut self) -> bool {
        if self.arrived == 0 {
            return false;
        }
        self.arrived -= 1;
        self.posted.pop_front();
        self.stream.completed();
        self.controls();
        true
    }
}

pub(super) fn config(slots: u16, buffer: u32, inline: u32, big_endian: bool) -> Config {
    Config {
        send_slots: slots,
        recv_slots: slots,
        send_buffer: buffer,
        recv_buffer: buffer,
        recv_addr: RECV,
        recv_key: 7,
        inline,
        iomaps: 4,
        big_endian,
    }
}

pub(super) fn pair(configs: [Config; 2]) -> [Side; 2] {
    let data = configs.map(|config| Stream::conn_data(&config, LISTS, 7));
    [0, 1].map(|this| {
        let config = configs[this];
        let mut side = Side {
            stream: Stream::new(config, data[1 - this]),
            memory: Memory {
                recv: vec![0; config.recv_buffer as usize],
                lists: vec![0; Stream::lists_len(config.iomaps)],
                mapped: vec![0; MAPPED_LEN],
                big_endian: config.big_endian,
            },
            send: vec![0; config.send_buffer as usize],
            posted: VecDeque::new(),
            arrived: 0,
            written: 0,
            read: 0,
        };
        side.controls();
        side
    })
}

/// Delivers and completes all writes.
pub(super) fn settle(sides: &mut [Side; 2]) {
    let [a, b] = sides;
    while a.deliver(b) || b.deliver(a) || a.complete() || b.complete() {}
}

fn run(configs: [Config; 2], steps: &[(u8, bool, usize)]) {
    let mut sides = pair(configs);
    for &(what, first, size) in steps {
        let [a, b] = &mut sides;
        let (one, other) = if first { (a, b) } else { (b, a) };
        match what {
            0 => {
                one.send(size);
            }
            1 => {
                one.read(size);
            }
            2 => {
                one.deliver(other);
            }
            3 => one.get_ahead(other),
            _ => {
                one.complete();
            }
        }
    }
    // Everything that was accepted arrives, however slow the delivery is.
    for _ in 0..10_000 {
        settle(&mut sides);
        let [a, b] = &mut sides;
        if a.read(1 << 20) + b.read(1 << 20) == 0 {
            break;
        }
    }
    settle(&mut sides);
    let [a, b] = &mut sides;
    assert_eq!((a.written, b.written), (b.read, a.read));
    // Both sides can send again.
    assert!(a.stream.can_send() && b.stream.can_send());
    assert!(a.stream.all_sent() && b.stream.all_sent());
    a.stream.shutdown(How::Both);
    a.controls();
    settle(&mut sides);
    assert!(sides.iter().all(|side| side.stream.end().is_some()));
}

proptest! {
    #[test]
    fn every_byte_arrives_in_order(
        slots in 16_u16..40,
        buffer in 1_u32..5000,
        inline in 0_u32..100,
        big_endian: [bool; 2],
        steps in prop::collection::vec((0_u8..5, any::<bool>(), 1_usize..9000), 0..600),
    ) {
        let configs = big_endian.map(|big| config(slots, buffer * 2, inline, big));
        run(configs, &steps);
    }
}
