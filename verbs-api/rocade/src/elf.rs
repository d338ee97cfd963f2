//! Reads the ELF header of a program, and how the program is loaded.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// The maximum size of a table in bytes, which protects against invalid files.
const TABLE_LIMIT: u64 = 4 << 20;

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;

const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

/// The properties of a program in its ELF header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Elf {
    /// The word size, 32 or 64 bits.
    pub(crate) bits: u8,
    /// `e_machine`.
    pub(crate) machine: u64,
    /// The dynamic linker. A static program has none.
    pub(crate) interpreter: Option<String>,
    /// The libraries that the program is linked with.
    pub(crate) needed: Vec<String>,
    /// The directories that are searched before `LD_LIBRARY_PATH`. A run path overrides them.
    pub(crate) rpath: Option<String>,
    /// The directories that are searched after `LD_LIBRARY_PATH`.
    pub(crate) runpath: Option<String>,
    /// True if the file calls `dlopen`.
    pub(crate) opens: bool,
    /// True if the file calls `dlmopen`, which loads a library into a namespace of its own.
    pub(crate) opens_namespaces: bool,
}

impl Elf {
    /// Reads the header of a file. Returns `None` if it is no ELF file or damaged.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        Reader::open(Source::File(File::open(path).ok()?))
            .ok()??
            .describe()
            .ok()
    }

    /// Reads the header of a file in memory. Returns `None` if it is no ELF file or damaged.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        Reader::open(Source::Bytes(bytes)).ok()??.describe().ok()
    }
}

/// The content of an ELF file.
enum Source<'a> {
    File(File),
    Bytes(&'a [u8]),
}

impl Source<'_> {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::File(file) => file.read_exact_at(buffer, offset),
            Self::Bytes(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let found = start
                    .checked_add(buffer.len())
                    .and_then(|end| bytes.get(start..end));
                buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }
}

struct Reader<'a> {
    source: Source<'a>,
    is_64: bool,
    is_little: bool,
}

/// A program header: type, offset, address and size in the file.
struct Segment {
    kind: u64,
    offset: u64,
    vaddr: u64,
    len: u64,
}

impl<'a> Reader<'a> {
    fn open(source: Source<'a>) -> io::Result<Option<Self>> {
        let mut ident = [0; 16];
        source.read_exact_at(&mut ident, 0)?;
        let [0x7f, b'E', b'L', b'F', class @ 1..=2, order @ 1..=2, ..] = ident else {
            return Ok(None);
        };
        Ok(Some(Self {
            source,
            is_64: class == 2,
            is_little: order == 1,
        }))
    }

    fn describe(&self) -> io::Result<Elf> {
        let mut elf = Elf {
            bits: if self.is_64 { 64 } else { 32 },
            machine: self.number(18, 2)?,
            ..Elf::default()
        };
        let segments = self.segments()?;
        for segment in &segments {
            match segment.kind {
                PT_INTERP => {
                    let text = self.table(segment.offset, segment.len)?;
                    elf.interpreter = Some(string_at(&text, 0));
                }
                PT_DYNAMIC => self.dynamic(segment, &segments, &mut elf)?,
                _ => {}
            }
        }
        Ok(elf)
    }

    fn segments(&self) -> io::Result<Vec<Segment>> {
        let (table, size, count) = if self.is_64 {
            (
                self.number(32, 8)?,
                self.number(54, 2)?,
                self.number(56, 2)?,
            )
        } else {
            (
                self.number(28, 4)?,
                self.number(42, 2)?,
                self.number(44, 2)?,
            )
        };
        (0..count)
            .map(|index| {
                let at = |offset: u64| add(table, index * size).and_then(|at| add(at, offset));
                let field = |wide: u64, narrow: u64| {
                    if self.is_64 {
                        self.number(at(wide)?, 8)
                    } else {
                        self.number(at(narrow)?, 4)
                    }
                };
                Ok(Segment {
                    kind: self.number(at(0)?, 4)?,
                    offset: field(8, 4)?,
                    vaddr: field(16, 8)?,
                    len: field(32, 16)?,
                })
            })
            .collect()
    }

    /// Reads the dynamic section into `elf`.
    fn dynamic(&self, segment: &Segment, all: &[Segment], elf: &mut Elf) -> io::Result<()> {
        let word = if self.is_64 { 8 } else { 4 };
        let bytes = self.table(segment.offset, segment.len)?;
        let entries: Vec<(u64, u64)> = bytes
            .chunks_exact(2 * word)
            .map(|pair| {
                let (tag, value) = pair.split_at(word);
                (self.decode(tag), self.decode(value))
            })
            .take_while(|(tag, _)| *tag != 0)
            .collect();
        let find = |wanted| entries.iter().find(|(tag, _)| *tag == wanted);
        let (Some((_, address)), Some((_, len))) = (find(DT_STRTAB), find(DT_STRSZ)) else {
            return Ok(());
        };
        let holds =
            |s: &&Segment| s.kind == PT_LOAD && *address >= s.vaddr && address - s.vaddr < s.len;
        let Some(load) = all.iter().find(holds) else {
            return Ok(());
        };
        let strings = self.table(add(load.offset, address - load.vaddr)?, *len)?;
        for (tag, value) in &entries {
            let text = || string_at(&strings, *value);
            match *tag {
                DT_NEEDED => elf.needed.push(text()),
                DT_RPATH => elf.rpath = Some(text()),
                DT_RUNPATH => elf.runpath = Some(text()),
                _ => {}
            }
        }
        // The names of the symbols that it takes from libraries are among these texts.
        for name in strings.split(|byte| *byte == 0) {
            elf.opens |= name == b"dlopen";
            elf.opens_namespaces |= name == b"dlmopen";
        }
        Ok(())
    }

    fn number(&self, offset: u64, len: u64) -> io::Result<u64> {
        Ok(self.decode(&self.table(offset, len)?))
    }

    fn decode(&self, bytes: &[u8]) -> u64 {
        let shift = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        if self.is_little {
            bytes.iter().rev().fold(0, shift)
        } else {
            bytes.iter().fold(0, shift)
        }
    }

    fn table(&self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let len = usize::try_from(len.min(TABLE_LIMIT)).unwrap_or(0);
        let mut bytes = vec![0; len];
        self.source.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}

fn add(a: u64, b: u64) -> io::Result<u64> {
    a.checked_add(b)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Returns the text at `offset`, up to its NUL.
fn string_at(table: &[u8], offset: u64) -> String {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let tail = table.get(start..).unwrap_or(&[]);
    let text = tail.split(|byte| *byte == 0).next().unwrap_or(&[]);
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn own() -> Vec<u8> {
        fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn a_dynamic_program_is_described() {
        let elf = Elf::read(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(elf.bits, 64);
        assert!(elf.interpreter.unwrap().contains("ld-linux"));
        assert!(elf.needed.iter().any(|name| name == "libc.so.6"));
    }

    #[test]
    fn no_damage_is_an_accident() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x");
        let whole = own();
        for len in [0, 3, 4, 15, 16, 17, 63, 64, 100, 1000] {
            fs::write(&file, &whole[..len]).unwrap();
            assert_eq!(Elf::read(&file), None, "{len} bytes");
        }
        // Sets every byte of the header and the program headers to its extremes.
        let head = &whole[..0x400];
        for index in 4..head.len() {
            for byte in [0, 0x7f, 0xff] {
                let mut bytes = head.to_vec();
                bytes[index] = byte;
                fs::write(&file, &bytes).unwrap();
                let _ = Elf::read(&file);
            }
        }
    }

    #[test]
    fn a_file_in_memory_is_read_like_one_on_disk() {
        let path = std::env::current_exe().unwrap();
        assert_eq!(Elf::parse(&own()), Elf::read(&path));
        assert!(Elf::parse(&own()[..40]).is_none());
    }
}
