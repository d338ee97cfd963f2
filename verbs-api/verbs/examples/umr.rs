//! Sends a column of a matrix to another host, in one message and without a copy (UMR).
//!
//! ```sh
//! cargo run --package rocade-verbs --example umr
//! ```
//! The numbers of a column are one row apart. An indirect key maps them to one range, so a WRITE
//! gathers them and they arrive next to each other. Then the other side reads the diagonal through
//! the same key. Finally it takes a lock, one bit of a word, with a masked atomic.

use std::time::Duration;

use rocade_verbs::{
    AccessFlags, Config, ConnectOptions, DeviceList, MaskedAtomic, Result, SendRequest,
};

const PATIENCE: Duration = Duration::from_secs(60);
const ROWS: usize = 8;
const ROW: usize = ROWS * 8;

fn main() -> Result<()> {
    let specs = ["here=127.0.0.95", "there=127.0.0.96"];
    let list = DeviceList::new(Config::from_specs(&specs)?)?;
    let here = list.open("here")?.protection_domain()?;
    let there = list.open("there")?.protection_domain()?;
    let here_cq = here.context().completion_queue(16)?;
    let there_cq = there.context().completion_queue(16)?;
    let all = AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC;
    let matrix = here.register(ROWS * ROW, all)?;
    let column = there.register(ROW + 8, all)?;
    for index in 0..ROWS * ROWS {
        matrix.write(index * 8, &index.to_ne_bytes())?;
    }

    let (a, b) = (
        here.queue_pair(&here_cq).build()?,
        there.queue_pair(&there_cq).build()?,
    );
    let (a_end, b_end) = (a.endpoint(), b.endpoint());
    let a = a.connect(b_end, &ConnectOptions::default())?;
    let b = b.connect(a_end, &ConnectOptions::default())?;

    // Column 3: one number per row, repeated at a distance of one row.
    let key = here.indirect_key(4, all)?;
    let third = key.repeated(&[(matrix.sge(24..32)?, ROW as u64)], ROWS as u64)?;
    a.post_sends(&[
        SendRequest::map_key(&third).unsignaled(),
        SendRequest::write(&[key.sge(..64)?], column.remote()),
    ])?;
    here_cq.wait(PATIENCE)?;
    let numbers = |bytes: Vec<u8>| {
        let words = bytes.as_chunks::<8>().0.iter();
        words
            .map(|word| usize::from_ne_bytes(*word))
            .collect::<Vec<_>>()
    };
    let got = numbers(column.to_vec(..ROW)?);
    println!("column 3: {got:?}");
    assert_eq!(got, (0..ROWS).map(|row| row * ROWS + 3).collect::<Vec<_>>());

    // The diagonal: a stride of one row and one number. The reader sees one range.
    let diagonal = key.repeated(&[(matrix.sge(..8)?, ROW as u64 + 8)], ROWS as u64)?;
    a.post_send(&SendRequest::map_key(&diagonal))?;
    here_cq.wait(PATIENCE)?;
    let range = key.remote(..ROW as u64)?;
    b.post_send(&SendRequest::read(&[column.sge(..ROW)?], range))?;
    there_cq.wait(PATIENCE)?;
    let got = numbers(column.to_vec(..ROW)?);
    println!("diagonal: {got:?}");
    assert_eq!(
        got,
        (0..ROWS).map(|row| row * (ROWS + 1)).collect::<Vec<_>>()
    );

    // Bit 0 of the first number is a lock. The masked atomic takes it if the bit is clear, whatever
    // the other bits.
    let take = MaskedAtomic::compare_swap(0, 1, 1, 1);
    let result = [column.sge(ROW..)?];
    b.post_send(&SendRequest::masked(&result, matrix.remote(), &take))?;
    there_cq.wait(PATIENCE)?;
    assert_eq!(numbers(matrix.to_vec(..8)?), [1], "the lock bit is set");
    println!("the lock is taken");
    Ok(())
}
