//! The page of statistics, which the broker hands out, and the files that applications read
//! (`/sys/class/infiniband/DEV/ports`) and that change: counters, and state and GIDs of a port.
//!
//! Each process that has the device open writes state and GIDs when the network interface changes.
//! All of them write the same. The counter files hold the sum over all processes that use them.
//! Each process adds its recent traffic, under a lock that the system releases when the process
//! ends. Only the background thread does that, a few times a second while there is traffic. A
//! thread that sends or receives only reads one word, and wakes the background thread for the first
//! packets after a pause.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use crate::sync::{Mutex, rank};
use rocade_transport::Time;

use super::carrier::LostCarrier;
use super::hidden::HiddenDevice;
use super::traffic::COUNTER_FILES;
use super::{Hca, PortFacts};
use crate::journal::AckJournal;
use crate::statistics::{self, Snapshot};
use crate::sys::check_file_size;

/// Longest time that the files may be behind.
const INTERVAL_NS: u64 = 200_000_000;
/// Delay before the next attempt if another process is writing.
const RETRY_NS: u64 = 5_000_000;
/// Number of attempts at the exit.
const TRIES_AT_EXIT: usize = 50;

/// Time for which a page is valid at least, for each queue pair: one of 16,384 keeps the thread
/// busy for less than a percent of its time.
const INTERVAL_PER_QP_NS: u64 = 20_000;

/// There are neither files nor a page.
const OFF: u8 = 0;
/// Files and page are up to date.
const CLEAN: u8 = 1;
/// Files and page are behind.
const DIRTY: u8 = 2;

/// The files with the values that they contain already, and the page.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    state: AtomicU8,
    /// Time of the next update, in ns.
    at: AtomicU64,
    /// A port may have changed since its files were written.
    ports_changed: AtomicBool,
    files: Mutex<Option<Files>, rank::CounterFiles>,
    page: Mutex<Option<Page>, rank::CounterFiles>,
}

/// The page of statistics in the journal of the process.
#[derive(Debug)]
struct Page {
    journal: Arc<AckJournal>,
    /// The process that made this, as in [`Files`].
    process: u32,
    /// The sums of each device that were shown so far. Counters of a queue pair are missing for a
    /// moment as it ends, and sums of counters never shrink.
    shown: Vec<Vec<u64>>,
}

#[derive(Debug)]
struct Files {
    dir: PathBuf,
    /// The process that made this. A forked child has a copy of the counters, which are not its
    /// own.
    process: u32,
    /// The values that this process has added so far, by device.
    added: Vec<Vec<u64>>,
    /// The contents of the port files, by device.
    shown: Vec<Vec<(PathBuf, String)>>,
    /// The devices that are removed at present.
    hidden: Vec<Option<HiddenDevice>>,
    /// The interfaces of ports that rules hold down.
    lost_carriers: BTreeMap<String, LostCarrier>,
}

impl PortFacts {
    /// The files of the port that change with its network interface, below its directory, and their
    /// contents.
    //= AEV-08
    #[must_use]
    pub fn changing_files(&self) -> Vec<(String, String)> {
        let (state, phys_state) = if self.attr.active {
            ("4: ACTIVE", "5: LinkUp")
        } else {
            ("1: DOWN", "3: Disabled")
        };
        let mut files = vec![
            ("state".to_owned(), format!("{state}\n")),
            ("phys_state".to_owned(), format!("{phys_state}\n")),
            ("rate".to_owned(), format!("{}\n", self.attr.rate())),
        ];
        for entry in &self.gids {
            let index = entry.index;
            let octets = entry.gid.octets();
            let (pairs, _) = octets.as_chunks();
            let groups: Vec<_> = pairs
                .iter()
                .map(|[high, low]| format!("{high:02x}{low:02x}"))
                .collect();
            files.push((format!("gids/{index}"), format!("{}\n", groups.join(":"))));
            let kind = format!("{}\n", entry.kind.name());
            files.push((format!("gid_attrs/types/{index}"), kind));
            if let Some(ifname) = &self.ifname {
                files.push((format!("gid_attrs/ndevs/{index}"), format!("{ifname}\n")));
            }
        }
        files
    }
}

impl Publisher {
    /// Returns true if the files are up to date, so that the next packet makes them outdated.
    #[inline]
    pub(crate) fn is_clean(&self) -> bool {
        self.state.load(Ordering::Relaxed) == CLEAN
    }

    /// Records traffic. Returns the time by which the files have to be written, or `None` if that
    /// was scheduled before.
    #[cold]
    pub(crate) fn note_traffic(&self) -> Option<Time> {
        let changed =
            self.state
                .compare_exchange(CLEAN, DIRTY, Ordering::AcqRel, Ordering::Relaxed);
        changed.ok().and_then(|_| self.due())
    }

    pub(crate) fn start(&self, dir: PathBuf, hcas: &[Arc<Hca>]) {
        let added = vec![vec![0; counter_files().count()]; hcas.len()];
        let files = Files {
            dir,
            process: std::process::id(),
            added,
            shown: vec![Vec::new(); hcas.len()],
            hidden: hcas.iter().map(|_| None).collect(),
            lost_carriers: BTreeMap::new(),
        };
        // Here, because a program may end before the background thread has a processor.
        files.restore_abandoned(hcas);
        *self.files.lock() = Some(files);
        self.ports_changed.store(true, Ordering::Release);
        self.state.store(DIRTY, Ordering::Release);
    }

    /// Records that a network interface has changed. The background thread then updates the port
    /// files at once.
    pub(crate) fn note_network(&self) {
        if self.state.load(Ordering::Acquire) != OFF {
            self.ports_changed.store(true, Ordering::Release);
            self.at.store(0, Ordering::Relaxed);
            self.state.store(DIRTY, Ordering::Release);
        }
    }

    /// Keeps a page of statistics in the journal, from the next traffic on.
    pub(crate) fn keep_page(&self, journal: Arc<AckJournal>) {
        if !journal.has_statistics() {
            return;
        }
        *self.page.lock() = Some(Page {
            journal,
            process: std::process::id(),
            shown: Vec::new(),
        });
        self.state.store(DIRTY, Ordering::Release);
    }

    /// Returns true if there are files to write.
    pub(crate) fn has_files(&self) -> bool {
        self.files.lock().is_some()
    }

    /// The time at which the background thread has to write the files.
    pub(crate) fn due(&self) -> Option<Time> {
        let dirty = self.state.load(Ordering::Acquire) == DIRTY;
        dirty.then(|| Time::from_ns(self.at.load(Ordering::Relaxed)))
    }

    /// Writes files and page if it is time.
    pub(crate) fn publish(
        &self,
        now: Time,
        hcas: &[Arc<Hca>],
        snapshot: impl FnOnce() -> Snapshot,
    ) {
        if self.due().is_none_or(|at| at > now) {
            return;
        }
        // Stored before the counters are read: later traffic makes the files outdated again.
        self.state.store(CLEAN, Ordering::SeqCst);
        let snapshot = snapshot();
        self.write_page(&snapshot);
        let done = self.add_to_files(hcas, &snapshot);
        if !done {
            self.state.store(DIRTY, Ordering::Release);
        }
        let cost_ns = INTERVAL_PER_QP_NS.saturating_mul(snapshot.qps.count() as u64);
        let wait_ns = if done { INTERVAL_NS } else { RETRY_NS }.max(cost_ns);
        let due = now.plus_ns(wait_ns).as_ns();
        self.at.store(due, Ordering::Relaxed);
    }

    /// Writes the page, unless the snapshot is empty or another thread is doing that.
    fn write_page(&self, snapshot: &Snapshot) {
        let page = self.page.try_lock();
        let Some(mut page) = page.filter(|_| !snapshot.devices.is_empty()) else {
            return;
        };
        let Some(page) = page
            .as_mut()
            .filter(|page| page.process == std::process::id())
        else {
            return;
        };
        let shown = &mut page.shown;
        shown.resize_with(snapshot.devices.len(), Vec::new);
        let mut words = snapshot.head_words();
        for (index, (device, shown)) in snapshot.devices.iter().zip(shown).enumerate() {
            shown.resize(device.sums.len(), 0);
            let metrics = statistics::QP.iter().zip(&device.sums);
            for ((metric, sum), shown) in metrics.zip(&mut *shown) {
                *shown = if metric.is_counter() {
                    *sum.max(shown)
                } else {
                    *sum
                };
            }
            Snapshot::replace_sums(&mut words, index, shown);
        }
        page.journal.put_statistics([&words, snapshot.qp_words()]);
    }

    /// Writes files and page when the process exits.
    pub(crate) fn publish_at_exit(&self, hcas: &[Arc<Hca>], snapshot: impl Fn() -> Snapshot) {
        if self.state.load(Ordering::Acquire) == OFF {
            return;
        }
        if let Some(Some(files)) = self.files.try_lock().as_deref_mut() {
            // The files belong to other processes, too.
            files.show_devices(hcas, |_| false);
            files.show_carriers(&[]);
        }
        let snapshot = snapshot();
        self.write_page(&snapshot);
        for _ in 0..TRIES_AT_EXIT {
            if self.add_to_files(hcas, &snapshot) {
                return;
            }
            std::thread::sleep(Duration::from_nanos(RETRY_NS / 10));
        }
    }

    /// Updates the files. Returns false if another process or thread is doing that.
    fn add_to_files(&self, hcas: &[Arc<Hca>], snapshot: &Snapshot) -> bool {
        let Some(mut files) = self.files.try_lock() else {
            return false;
        };
        let Some(files) = &mut *files else {
            return true;
        };
        if files.process != std::process::id() {
            return true;
        }
        let mut done = true;
        let changed = self.ports_changed.swap(false, Ordering::AcqRel);
        files.restore_abandoned(hcas);
        if changed {
            let all_shown = files.show_devices(hcas, Hca::is_removed);
            if !(files.show_carriers(hcas) && all_shown) {
                self.ports_changed.store(true, Ordering::Release);
                done = false;
            }
        }
        let Files {
            dir,
            added,
            shown,
            hidden,
            ..
        } = files;
        let is_shown = |(number, _): &(usize, &Arc<Hca>)| hidden[*number].is_none();
        let present: Vec<_> = hcas.iter().enumerate().filter(is_shown).collect();
        if changed {
            for (number, hca) in &present {
                let shown = &mut shown[*number];
                if let Err(error) = show_ports(dir, hca, shown) {
                    tracing::debug!(device = hca.config.name, %error, "failed to write the port files: they are outdated");
                }
            }
        }
        for (number, hca) in present {
            let added = &mut added[number];
            let port = port_dir(dir, hca);
            let sums = snapshot.devices.get(number).map(|device| &*device.sums);
            match add(&port, &file_values(hca, sums.unwrap_or(&[])), added) {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => done = false,
                // The application has changed its root or its user, and cannot see or write the
                // files.
                Err(TryLockError::Error(error)) => {
                    tracing::debug!(dir = %port.display(), %error, "failed to write the counter files: they are outdated");
                }
            }
        }
        done
    }
}

impl Files {
    /// Restores what a process has hidden which was then killed.
    fn restore_abandoned(&self, hcas: &[Arc<Hca>]) {
        for (hca, hidden) in hcas.iter().zip(&self.hidden) {
            let name = &hca.config.name;
            if hidden.is_none()
                && let Err(error) = HiddenDevice::show_abandoned(&self.dir, name)
            {
                tracing::debug!(device = name, %error, "failed to show a device of a killed process");
            }
            let ifnames = hca.ports().filter_map(|port| port.config.ifname.as_ref());
            for ifname in ifnames.filter(|ifname| !self.lost_carriers.contains_key(*ifname)) {
                if let Err(error) = LostCarrier::restore_abandoned(&self.dir, ifname) {
                    tracing::debug!(ifname, %error, "failed to restore the carrier of an interface");
                }
            }
        }
    }

    /// Takes the carrier from the interfaces of ports that rules hold down, and gives it back to
    /// the others. Returns false if another process keeps it from that at present.
    fn show_carriers(&mut self, hcas: &[Arc<Hca>]) -> bool {
        if self.process != std::process::id() {
            return true;
        }
        let ports = hcas.iter().flat_map(|hca| hca.ports());
        let down = ports.filter(|port| port.is_held_down());
        let down: BTreeSet<_> = down.filter_map(|port| port.config.ifname.clone()).collect();
        let mut all_shown = true;
        let mut tell = |ifname: &str, error: io::Error| {
            all_shown &= error.kind() != io::ErrorKind::WouldBlock;
            tracing::debug!(ifname, %error, "failed to write the carrier of an interface");
        };
        for (ifname, lost) in std::mem::take(&mut self.lost_carriers) {
            if down.contains(&ifname) {
                self.lost_carriers.insert(ifname, lost);
            } else if let Err(error) = lost.restore() {
                tell(&ifname, error);
            }
        }
        for ifname in down {
            if self.lost_carriers.contains_key(&ifname) {
                continue;
            }
            match LostCarrier::show(&self.dir, &ifname) {
                Ok(lost) => drop(self.lost_carriers.insert(ifname, lost)),
                Err(error) => tell(&ifname, error),
            }
        }
        all_shown
    }

    /// Hides the devices that are removed, and shows the others. Returns false if another process
    /// keeps it from that at present.
    fn show_devices(&mut self, hcas: &[Arc<Hca>], is_removed: impl Fn(&Hca) -> bool) -> bool {
        if self.process != std::process::id() {
            return true;
        }
        let mut all_shown = true;
        for (hca, hidden) in hcas.iter().zip(&mut self.hidden) {
            let name = &hca.config.name;
            let done = match (is_removed(hca), hidden.take()) {
                (true, None) => HiddenDevice::hide(&self.dir, name).map(Some),
                (false, Some(was)) => was.show().map(|()| None),
                (_, same) => Ok(same),
            };
            match done {
                Ok(now) => *hidden = now,
                Err(error) => {
                    all_shown &= error.kind() != io::ErrorKind::WouldBlock;
                    tracing::debug!(device = name, %error, "failed to hide or show the files of a device");
                }
            }
        }
        all_shown
    }
}

/// Returns the names of the counter files below `ports/N`.
fn counter_files() -> impl Iterator<Item = String> {
    let sums = statistics::hw_counters().map(|(_, name)| format!("hw_counters/{name}"));
    COUNTER_FILES.into_iter().map(str::to_owned).chain(sums)
}

/// Returns the values of [`counter_files`], given the sums over the queue pairs.
fn file_values(hca: &Hca, sums: &[u64]) -> Vec<u64> {
    let of_qps = statistics::hw_counters().map(|(index, _)| sums.get(index).copied().unwrap_or(0));
    hca.traffic.values().into_iter().chain(of_qps).collect()
}

fn port_dir(dir: &Path, hca: &Hca) -> PathBuf {
    ports_dir(dir, hca).join("1")
}

fn ports_dir(dir: &Path, hca: &Hca) -> PathBuf {
    let name = &hca.config.name;
    dir.join(name).join("infiniband").join(name).join("ports")
}

/// Writes the port files of a device that differ from `shown`.
fn show_ports(dir: &Path, hca: &Hca, shown: &mut Vec<(PathBuf, String)>) -> io::Result<()> {
    let ports = ports_dir(dir, hca);
    let mut now = Vec::new();
    for (number, port) in (1..).zip(hca.facts().ports) {
        let at = ports.join(format!("{number}"));
        let files = port.changing_files().into_iter();
        now.extend(files.map(|(file, text)| (at.join(file), text)));
        for (index, pkey) in hca.pkeys().iter().enumerate() {
            let text = format!("{:#06x}\n", pkey.get());
            now.push((at.join(format!("pkeys/{index}")), text));
        }
    }
    // Outside all directories that applications list.
    let new = dir.join(format!(".{}-{}", hca.config.name, std::process::id()));
    for (path, text) in now.iter().filter(|file| !shown.contains(file)) {
        if fs::read_to_string(path).is_ok_and(|there| there == *text) {
            continue;
        }
        // Readers see the old text or the new one.
        check_file_size(text.len() as u64)?;
        fs::write(&new, text)?;
        fs::set_permissions(&new, Permissions::from_mode(0o444))?;
        fs::rename(&new, path)?;
    }
    *shown = now;
    Ok(())
}

/// Adds the traffic since `added` to the files of a port.
fn add(port: &Path, values: &[u64], added: &mut [u64]) -> Result<(), TryLockError> {
    if values == added {
        return Ok(());
    }
    let lock = File::open(port).map_err(TryLockError::Error)?;
    lock.try_lock()?;
    for ((file, value), added) in counter_files().zip(values).zip(added) {
        let more = value.saturating_sub(*added);
        if more > 0 {
            add_one(&port.join(file), more).map_err(TryLockError::Error)?;
            *added = *value;
        }
    }
    Ok(())
}

/// Adds to a counter file. A counter never shrinks, so its new text overwrites all of the old one.
fn add_one(path: &Path, more: u64) -> io::Result<()> {
    let sum: u64 = fs::read_to_string(path)?.trim().parse().unwrap_or(0);
    let text = format!("{}\n", sum.saturating_add(more));
    check_file_size(text.len() as u64)?;
    File::options()
        .write(true)
        .open(path)?
        .write_all(text.as_bytes())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn device(addrs: &[&str]) -> Arc<Hca> {
        let port = crate::config::PortConfig {
            ifname: Some("v0".to_owned()),
            ifindex: 7,
            addrs: addrs
                .iter()
                .map(|addr| addr.parse().expect("an address"))
                .collect(),
            follows: vec![7],
            netdev_mtu: 1500,
        };
        let config = crate::config::DeviceConfig {
            name: "dev".to_owned(),
            port,
            second_port: None,
            guid: rocade_wire::Guid::new(7),
            like: crate::config::Likeness::default(),
            identity: crate::config::DeviceIdentity::default(),
            pkeys: vec![rocade_wire::Pkey::DEFAULT],
        };
        Arc::new(Hca::new(config, 0))
    }

    //= AEV-08 type=test
    #[test]
    fn ports_are_shown_as_they_are() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let hcas = [device(&["192.0.2.1"])];
        let port = hcas[0].port(1).expect("the first port");
        let at = port_dir(dir.path(), &hcas[0]);
        for inside in [
            "gids",
            "gid_attrs/types",
            "gid_attrs/ndevs",
            "counters",
            "pkeys",
        ] {
            fs::create_dir_all(at.join(inside)).expect("writable");
        }
        let read = |file: &str| fs::read_to_string(at.join(file)).expect("there");
        let publisher = Publisher::default();
        let now = Time::from_ns(1);
        publisher.note_network();
        assert!(publisher.due().is_none(), "there are no files");
        publisher.start(dir.path().to_owned(), &hcas);
        publisher.publish(now, &hcas, Snapshot::default);
        assert_eq!(read("state"), "4: ACTIVE\n");
        let first = "0000:0000:0000:0000:0000:ffff:c000:0201\n";
        assert_eq!(read("gids/0"), first);

        assert!(port.set_running(false));
        let interface = crate::config::Interface {
            name: "v0".to_owned(),
            index: 7,
            mtu_bytes: 1500,
            loopback: false,
            addrs: vec!["192.0.2.1".parse().unwrap(), "fd77::3".parse().unwrap()],
        };
        let network = crate::config::HostNetwork::new(vec![interface]);
        assert!(port.follow(&network));
        publisher.publish(now, &hcas, Snapshot::default);
        assert_eq!(read("state"), "4: ACTIVE\n", "the change was not noted");
        // A change of the port is written at once, even if the counters were written just now.
        publisher.note_network();
        publisher.publish(now, &hcas, Snapshot::default);
        assert_eq!(read("state"), "1: DOWN\n");
        assert_eq!(read("phys_state"), "3: Disabled\n");
        assert_eq!(read("gids/0"), first);
        assert_eq!(read("gids/1"), "fd77:0000:0000:0000:0000:0000:0000:0003\n");
        assert_eq!(read("gid_attrs/types/1"), "RoCE v2\n");
        assert_eq!(read("gid_attrs/ndevs/1"), "v0\n");
        let gone = crate::config::HostNetwork::new(Vec::new());
        assert!(port.follow(&gone));
        publisher.note_network();
        publisher.publish(now, &hcas, Snapshot::default);
        assert_eq!(read("gids/1"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
    }

    #[test]
    fn processes_add_up() {
        let _no_starts = crate::sys::STARTS.read();
        let port = tempfile::tempdir().expect("a temporary directory");
        for dir in ["counters", "hw_counters"] {
            fs::create_dir(port.path().join(dir)).expect("writable");
        }
        for file in counter_files() {
            fs::write(port.path().join(file), "0\n").expect("writable");
        }
        let read = |file: &str| fs::read_to_string(port.path().join(file)).expect("there");
        let count = counter_files().count();
        let (mut first, mut second) = (vec![0; count], vec![0; count]);
        add(port.path(), &vec![7; count], &mut first).expect("no error");
        add(port.path(), &vec![5; count], &mut second).expect("no error");
        add(port.path(), &vec![9; count], &mut first).expect("no error");
        assert_eq!(read("counters/port_xmit_data"), "14\n");
        assert_eq!(read("hw_counters/duplicate_request"), "14\n");
        assert_eq!(first, vec![9; count]);

        let other = File::open(port.path()).expect("there");
        other.lock().expect("the lock is free");
        let busy = add(port.path(), &vec![10; count], &mut first);
        assert!(matches!(busy, Err(TryLockError::WouldBlock)), "{busy:?}");
        assert_eq!(first, vec![9; count]);
    }
}
