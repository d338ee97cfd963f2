//! The second process, which receives and checks its memory.

use std::io::{self, Read, Write};
use std::net::IpAddr;

use rocade_emulator::config::Settings;
use rocade_verbs::{ConnectOptions, Endpoint, QueuePair, SendRequest};

use super::control_pipe::{ControlPipe, PeerCommand};
use super::{BULK_COUNT, COUNTER, LAST_PING, PING_LEN, Side, pattern};
use crate::error::CliError;

/// Serves the requester until it asks to end.
pub(super) fn run(addr: IpAddr, settings: &Settings) -> Result<(), CliError> {
    let side = Side::new(addr, settings)?;
    let mut pipe = ControlPipe::new(io::stdin().lock(), io::stdout().lock());
    let qp = side.queue_pair()?;
    let (from, to) = pipe.streams();
    let other: Endpoint = qp.endpoint().exchange(from, &mut *to)?;
    let memory = [
        side.bulk.remote().to_bytes(),
        side.small.remote().to_bytes(),
    ]
    .concat();
    to.write_all(&memory).map_err(rocade_verbs::Error::from)?;
    let served = qp
        .connect(other, &ConnectOptions::default())
        .map_err(CliError::from)
        .and_then(|qp| serve(&side, &qp, &mut pipe));
    served.map_err(|error| {
        // The requester prints it, unless it has an error of its own, such as that of the address.
        let _ = pipe.send_line(error.text().replace('\n', " "));
        CliError::silent(error.exit_code())
    })
}

fn serve<R: Read, W: Write>(
    side: &Side,
    qp: &QueuePair,
    pipe: &mut ControlPipe<R, W>,
) -> Result<(), CliError> {
    pipe.send_line("ok")?;
    loop {
        let command: PeerCommand = pipe.read_line()?.parse()?;
        let problem = match command {
            PeerCommand::Quit => return pipe.send_line("ok"),
            PeerCommand::Pong => {
                side.post_ping_receives(qp)?;
                pipe.send_line("ok")?;
                pong(qp, side)?
            }
            PeerCommand::Receive(seed) => {
                for index in 0..BULK_COUNT {
                    qp.post_recv(index as u64, &[side.bulk.sge(Side::place(index))?])?;
                }
                pipe.send_line("ok")?;
                side.take_receives(BULK_COUNT)?;
                side.check_bulk(seed)?
            }
            PeerCommand::Check(seed) => side.check_bulk(seed)?,
            PeerCommand::Fill(seed) => {
                side.fill_bulk(seed)?;
                None
            }
            PeerCommand::Counter(expected) => {
                let found = side.small.load_u64(COUNTER)?;
                side.small.store_u64(COUNTER, 0)?;
                (found != expected).then(|| format!("the counter is {found}, not {expected}"))
            }
        };
        pipe.send_line(problem.as_deref().unwrap_or("ok"))?;
    }
}

/// Answers each ping with its own bytes, until the last one.
fn pong(qp: &QueuePair, side: &Side) -> Result<Option<String>, CliError> {
    let mut expected = [0; PING_LEN];
    let mut problem = None;
    for number in 0u64.. {
        let (completion, found) = side.take_ping(qp)?;
        qp.post_send(&SendRequest::send_inline(&found))?;
        pattern::fill(&mut expected, 0, number);
        if found != expected {
            problem = Some(format!("the data of ping {number} are wrong"));
        }
        if completion.immediate == Some(LAST_PING) {
            break;
        }
    }
    Ok(problem)
}
