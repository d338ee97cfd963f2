//! The capture file: sections in pcapng format, appended.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::{PcapNgBlock as _, PcapNgWriter};
use pcap_file::{DataLink, Endianness};

use super::{Counts, Medium, Record};
use crate::link::fault::PacketDirection;
use crate::sys::check_file_size;

/// The type of a section header block, with which a pcapng file begins.
const MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// `if_tsresol`: timestamps are in nanoseconds.
const NANOSECONDS: u8 = 9;
/// `epb_flags` of a received and of a sent packet.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// The file to which sections are appended.
#[derive(Debug)]
pub(super) struct Sections {
    file: File,
    path: PathBuf,
    /// Name and PID of the program, written into each section.
    program: String,
    said: Counts,
    failed: bool,
}

/// Prepares a capture file for a new run. Creates or truncates it, unless a process is writing to
/// it. Then the packets of that process stay.
///
/// # Errors
/// Errors of opening, or `InvalidData` if the file is in use and not a pcapng file.
pub fn prepare(path: &Path) -> io::Result<()> {
    let mut file = open(path)?;
    if file.try_lock().is_ok() {
        // Truncates any file, because the user chose this path.
        return file.set_len(0);
    }
    check(&mut file)
}

fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        // A capture contains data from registered memory.
        .mode(0o600)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a capture needs a regular file",
        ));
    }
    Ok(file)
}

/// Checks that the file is empty or a pcapng file.
fn check(file: &mut File) -> io::Result<()> {
    let mut begin = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(MAGIC.len() as u64).read_to_end(&mut begin)?;
    if begin.is_empty() || begin == MAGIC {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        "the file exists and is not a pcapng file",
    ))
}

impl Sections {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut file = open(path)?;
        // Held until the process ends, so that `prepare` sees that the file is in use.
        file.lock_shared()?;
        check(&mut file)?;
        let program = std::env::current_exe().ok();
        let program = program.as_deref().and_then(Path::file_name);
        let program = program.unwrap_or_default().to_string_lossy();
        let program = format!("{program} (pid {})", std::process::id());
        let mut sections = Self {
            file,
            path: path.to_owned(),
            program,
            said: Counts::default(),
            failed: false,
        };
        // A process that never sends appears in the file, too.
        sections.write(&[], &[], Counts::default())?;
        Ok(sections)
    }

    /// Appends packets, if there are any or if others were dropped.
    pub(super) fn append(&mut self, records: &[Record], frames: &[u8], counts: Counts) {
        let has_news = !records.is_empty() || counts != self.said;
        if has_news && !self.failed {
            let written = self.write(records, frames, counts);
            written.unwrap_or_else(|error| self.fail(&error));
        }
    }

    fn write(&mut self, records: &[Record], frames: &[u8], counts: Counts) -> io::Result<()> {
        let section = self.section(records, frames, counts);
        let section = section.map_err(io::Error::other)?;
        // Written in one call, because other processes append too.
        let file = self.file.metadata()?;
        check_file_size(file.len() + section.len() as u64)?;
        self.file.write_all(&section)?;
        self.said = counts;
        Ok(())
    }

    /// Stops capturing after a failed write, because retries on a full disk are useless.
    fn fail(&mut self, error: &dyn std::fmt::Display) {
        self.failed = true;
        tracing::error!(
            "failed to write to the capture {}, which ends: {error}",
            self.path.display()
        );
    }

    fn section(
        &self,
        records: &[Record],
        frames: &[u8],
        counts: Counts,
    ) -> Result<Vec<u8>, pcap_file::PcapError> {
        let header = SectionHeaderBlock {
            // Interface statistics split the timestamp into two halves, the upper one first.
            endianness: Endianness::Big,
            options: vec![SectionHeaderOption::UserApplication(Cow::Owned(format!(
                "Rocade {} in {}",
                env!("CARGO_PKG_VERSION"),
                self.program
            )))],
            ..SectionHeaderBlock::default()
        };
        let bytes = Vec::with_capacity(frames.len() + records.len() * 64 + 1024);
        let mut writer = PcapNgWriter::with_section_header(bytes, header)?;
        for medium in Medium::ALL {
            let interface = InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: 0,
                options: vec![
                    InterfaceDescriptionOption::IfName(Cow::Borrowed(medium.name())),
                    InterfaceDescriptionOption::IfDescription(Cow::Borrowed(&self.program)),
                    InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                ],
            };
            writer.write_block(&interface.into_block())?;
        }
        let mut begin = 0;
        for record in records {
            writer.write_block(&packet(record, &frames[begin..record.end]).into_block())?;
            begin = record.end;
        }
        // All interfaces share one queue, so only the first one has statistics.
        let statistics = InterfaceStatisticsBlock {
            interface_id: 0,
            timestamp: records.last().map_or(0, |record| record.unix_ns),
            options: vec![
                InterfaceStatisticsOption::IsbIfRecv(counts.seen),
                InterfaceStatisticsOption::IsbIfDrop(counts.lost),
            ],
        };
        writer.write_block(&statistics.into_block())?;
        Ok(writer.into_inner())
    }
}

fn packet<'a>(record: &'a Record, frame: &'a [u8]) -> EnhancedPacketBlock<'a> {
    let flags = match record.direction {
        PacketDirection::Rx => INBOUND,
        PacketDirection::Tx => OUTBOUND,
    };
    let mut options = vec![EnhancedPacketOption::Flags(flags)];
    if !record.note.is_empty() {
        options.push(EnhancedPacketOption::Comment(Cow::Borrowed(&record.note)));
    }
    EnhancedPacketBlock {
        interface_id: record.medium as u32,
        timestamp: Duration::from_nanos(record.unix_ns),
        original_len: u32::try_from(frame.len()).unwrap_or(u32::MAX),
        data: Cow::Borrowed(frame),
        options,
    }
}
