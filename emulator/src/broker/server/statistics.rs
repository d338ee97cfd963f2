//! Hands out the journals of clients, for their statistics.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _};

use super::super::protocol::Response;
use super::Server;
use super::error::RequestRefusal;

impl Server {
    /// Sends the journal of the first client whose slot is not below `first`.
    pub(super) fn send_statistics(&mut self, index: usize, first: u8) {
        let with_journal = self.clients.iter().filter_map(|client| {
            let slot = client
                .slot
                .filter(|slot| slot.get() >= first && !client.gone)?;
            Some((slot, client, client.registered_journal.as_ref()?.journal()))
        });
        let Some((slot, client, journal)) = with_journal.min_by_key(|(slot, ..)| *slot) else {
            self.clients[index].send(&Response::StatisticsOf(None), &[]);
            return;
        };
        let (pid, name) = (client.peer.pid, client.name.clone());
        // A copy of the descriptor could change the ACKs that are pending.
        let opened = File::open(format!("/proc/self/fd/{}", journal.as_raw_fd()));
        match opened {
            Ok(file) => {
                let answer = Response::StatisticsOf(Some((slot, pid, name)));
                self.clients[index].send(&answer, &[file.as_fd()]);
            }
            Err(error) => {
                let text = "failed to open the journal of a client in /proc/self/fd";
                self.refuse(index, RequestRefusal::system(text, &error));
            }
        }
    }
}
