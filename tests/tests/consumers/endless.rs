//! A pair of perftest that runs until the test ends it, so that it cannot be over too early.

use std::time::{Duration, Instant};

use rocade_tests::harness::{Perftest, Process, Rig, free_port, perftest_rows};

use crate::LIMIT;

/// A server and a client. The client prints a row each second.
pub(crate) struct EndlessPair {
    pub(crate) server: Process,
    pub(crate) client: Process,
}

impl EndlessPair {
    pub(crate) fn start(rig: &Rig, program: &str, arguments: &[&str]) -> Self {
        let endless = ["-D", "1", "--run_infinitely"];
        let pair = Perftest::new(program, &[&endless[..], arguments].concat());
        let port = free_port();
        let server = pair.start_server(rig, port);
        let client = pair.start_client(rig, "127.0.0.1", port);
        Self { server, client }
    }

    /// Waits until the client reports messages of an interval that begins after this call.
    pub(crate) fn wait_progress(&mut self) {
        wait_progress([self]);
    }

    /// Waits until the client reports messages of a row after this number of rows.
    fn wait_beyond(&mut self, count: usize) {
        let server = &mut self.server;
        self.client.wait_until("further results", LIMIT, |client| {
            assert!(server.is_running(), "the server ended\n{}", server.output());
            // Without a processor for a second the client reports no messages.
            let rows = perftest_rows(&client.output());
            let mut later = rows.iter().skip(count);
            later.any(|&(_, messages)| messages > 0).then_some(())
        });
    }

    /// Kills the server under traffic. Returns the client's output, and the time until the client
    /// ended.
    pub(crate) fn kill_server(mut self) -> (String, Duration) {
        self.wait_progress();
        let killed = Instant::now();
        self.server.kill();
        let output = self.client.finish(LIMIT).expect_failure();
        (output, killed.elapsed())
    }
}

/// Waits until each client reports messages of an interval that begins after this call.
pub(crate) fn wait_progress<'a>(pairs: impl IntoIterator<Item = &'a mut EndlessPair>) {
    let counted = pairs.into_iter().map(|pair| {
        let rows = perftest_rows(&pair.client.output()).len();
        (pair, rows)
    });
    // The next row is of an interval that has begun already.
    for (pair, rows) in counted.collect::<Vec<_>>() {
        pair.wait_beyond(rows + 1);
    }
}
