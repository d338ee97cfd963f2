//! Reads the files of a wheel of Python, a zip archive.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use miniz_oxide::inflate::decompress_to_vec_with_limit;
use miniz_oxide::inflate::stream::{InflateState, inflate};
use miniz_oxide::{DataFormat, MZFlush};

/// The signature of the record at the end of an archive, and its length without the comment.
const END: [u8; 4] = *b"PK\x05\x06";
const END_LEN: usize = 22;
/// The longest comment behind the record.
const MAX_COMMENT: u64 = 0xffff;
/// The signature of an entry of the directory, and its length without the name.
const ENTRY: [u8; 4] = *b"PK\x01\x02";
const ENTRY_LEN: usize = 46;
/// The length of the header before the data of a file, without the name.
const LOCAL_LEN: usize = 30;
/// The maximum size of the directory in bytes.
const MAX_DIRECTORY: u64 = 64 << 20;
/// The maximum size of a file in bytes.
const MAX_FILE: u64 = 512 << 20;

/// A wheel, or another zip archive of at most 4 GiB.
pub(super) struct Wheel {
    file: File,
    members: Vec<Member>,
}

/// A file of a wheel.
pub(super) struct Member {
    pub(super) name: String,
    method: u16,
    packed_len: u64,
    len: u64,
    offset: u64,
}

/// Returns true for the name of a wheel.
pub(super) fn is_wheel(path: &Path) -> bool {
    let extension = path.extension().and_then(std::ffi::OsStr::to_str);
    matches!(extension, Some("whl" | "zip"))
}

impl Wheel {
    /// Reads the directory of an archive.
    ///
    /// # Errors
    /// Errors of reading, and `InvalidData` if it is no zip archive.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let tail_len = len.min(MAX_COMMENT + END_LEN as u64);
        let tail = read_at(&file, len - tail_len, tail_len)?;
        let starts = (0..(tail.len() + 1).saturating_sub(END_LEN)).rev();
        let mut ends = starts.filter_map(|at| tail.get(at..)?.strip_prefix(&END));
        let end = ends.next().ok_or_else(|| invalid("no zip archive"))?;
        let (directory_len, offset) = (u32_at(end, 8)?, u32_at(end, 12)?);
        if directory_len > MAX_DIRECTORY || offset + directory_len > len {
            return Err(invalid("a zip archive that is damaged or too large"));
        }
        let directory = read_at(&file, offset, directory_len)?;
        let members = parse(&directory)?;
        Ok(Self { file, members })
    }

    /// Returns the files in the order of the archive.
    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the content of a file, or `None` if it begins with something else than `magic`.
    ///
    /// # Errors
    /// Errors of reading, and `InvalidData` for a file that is damaged, too large, or packed in an
    /// unknown way.
    pub(super) fn read(&self, member: &Member, magic: &[u8]) -> io::Result<Option<Vec<u8>>> {
        if member.len < magic.len() as u64 {
            return Ok(None);
        }
        if member.len > MAX_FILE || member.packed_len > MAX_FILE {
            return Err(invalid("too large"));
        }
        let header = read_at(&self.file, member.offset, LOCAL_LEN as u64)?;
        let skipped = u64::from(u16_at(&header, 26)?) + u64::from(u16_at(&header, 28)?);
        let data = member.offset + LOCAL_LEN as u64 + skipped;
        let packed = read_at(&self.file, data, member.packed_len)?;
        let content = match member.method {
            0 if packed.starts_with(magic) => packed,
            8 if begins(&packed, magic) => unpack(&packed, member.len)?,
            0 | 8 => return Ok(None),
            _ => return Err(invalid("packed in an unknown way")),
        };
        if content.len() as u64 != member.len {
            return Err(invalid("not as long as the archive says"));
        }
        Ok(Some(content))
    }
}

/// Returns true if the packed data begins with these bytes.
fn begins(packed: &[u8], magic: &[u8]) -> bool {
    let mut head = vec![0; magic.len()];
    let mut state = InflateState::new_boxed(DataFormat::Raw);
    inflate(&mut state, packed, &mut head, MZFlush::None).bytes_written == magic.len()
        && head == magic
}

fn unpack(packed: &[u8], len: u64) -> io::Result<Vec<u8>> {
    let limit = usize::try_from(len).map_err(|_| short())?;
    decompress_to_vec_with_limit(packed, limit).map_err(|_| invalid("damaged"))
}

/// Parses the directory of an archive.
fn parse(mut directory: &[u8]) -> io::Result<Vec<Member>> {
    let mut members = Vec::new();
    while directory.starts_with(&ENTRY) {
        let [name, extra, comment] = [28, 30, 32].map(|at| u16_at(directory, at));
        let name_end = ENTRY_LEN + usize::from(name?);
        let end = name_end + usize::from(extra?) + usize::from(comment?);
        let name = directory.get(ENTRY_LEN..name_end).ok_or_else(short)?;
        members.push(Member {
            name: String::from_utf8_lossy(name).into_owned(),
            method: u16_at(directory, 10)?,
            packed_len: u32_at(directory, 20)?,
            len: u32_at(directory, 24)?,
            offset: u32_at(directory, 42)?,
        });
        directory = directory.get(end..).ok_or_else(short)?;
    }
    Ok(members)
}

fn read_at(file: &File, offset: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| short())?];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> io::Result<u16> {
    let bytes = bytes.get(at..at + 2).ok_or_else(short)?;
    Ok(u16::from_le_bytes(bytes.try_into().map_err(|_| short())?))
}

fn u32_at(bytes: &[u8], at: usize) -> io::Result<u64> {
    let bytes = bytes.get(at..at + 4).ok_or_else(short)?;
    let number = u32::from_le_bytes(bytes.try_into().map_err(|_| short())?);
    Ok(number.into())
}

fn short() -> io::Error {
    invalid("a zip archive that ends early")
}

fn invalid(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// An archive that zip(1) made: `a` with the text `\x7fELFabc`, stored.
    fn archive() -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(*b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0");
        bytes.extend(*b"\0\0\0\0\x07\0\0\0\x07\0\0\0\x01\0\0\0a\x7fELFabc");
        let directory = bytes.len();
        bytes.extend(*b"PK\x01\x02\x14\0\x14\0\0\0\0\0\0\0\0\0");
        bytes.extend(*b"\0\0\0\0\x07\0\0\0\x07\0\0\0\x01\0\0\0\0\0\0\0\0\0");
        bytes.extend(*b"\0\0\0\0\0\0\0\0a");
        let len = bytes.len() - directory;
        bytes.extend(*b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
        bytes.extend(u32::try_from(len).unwrap().to_le_bytes());
        bytes.extend(u32::try_from(directory).unwrap().to_le_bytes());
        bytes.extend(*b"\0\0");
        bytes
    }

    #[test]
    fn members_are_read_if_they_begin_as_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.whl");
        fs::write(&path, archive()).unwrap();
        let wheel = Wheel::open(&path).unwrap();
        let [member] = wheel.members() else {
            panic!("not one member")
        };
        assert_eq!(member.name, "a");
        let content = wheel.read(member, b"\x7fELF").unwrap();
        assert_eq!(content.as_deref(), Some(&b"\x7fELFabc"[..]));
        assert!(wheel.read(member, b"PK").unwrap().is_none());
        // A comment may follow.
        let mut longer = archive();
        longer.extend(*b"a comment");
        fs::write(&path, longer).unwrap();
        assert_eq!(Wheel::open(&path).unwrap().members().len(), 1);
    }

    #[test]
    fn no_damage_is_an_accident() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.whl");
        let whole = archive();
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            assert!(Wheel::open(&path).is_err(), "{len} bytes");
        }
        for at in 0..whole.len() {
            for byte in [0, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = byte;
                fs::write(&path, &bytes).unwrap();
                if let Ok(wheel) = Wheel::open(&path) {
                    for member in wheel.members() {
                        let _ = wheel.read(member, b"\x7fELF");
                    }
                }
            }
        }
    }
}
