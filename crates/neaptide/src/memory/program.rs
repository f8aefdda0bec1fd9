//! Pages of the program itself: how many of them are mapped at once.
//!
//! When a page of a file is touched, the kernel maps its neighbours with it: all that the page cache holds of 64 KiB
//! (`fault_around_bytes`), up to the ends of the mapping. A run needs a function here and there of 8 MiB of code
//! and would so have 2 to 5 MiB mapped: how much depends on how the page cache came by the file, and differs
//! between a program that was just linked and a copy of it.
//!
//! ```text
//!   one mapping   |------------------------------------------------|   a touch maps up to 64 KiB
//!   in pieces     |----|xxxx|----|xxxx|----|xxxx|----|xxxx|----|xxx|   a touch maps up to 16 KiB
//! ```
//!
//! Neighbours that differ in an attribute are mappings of their own. The attribute (x) leaves a piece out of
//! core dumps, which unwritten pages of files are left out of anyway.

use std::sync::OnceLock;

/// Whether the program lies in pieces: the first call makes them.
static IN_PIECES: OnceLock<bool> = OnceLock::new();

/// Smaller ones map less, but each takes 192 bytes of the kernel's and some of its tree of mappings.
const PIECE_BYTES: usize = 16 << 10;

/// Program text, constants and libraries that running a model touches, and the records of its pieces:
/// counted as a constant, so that the same budget is feasible in every process, however many
/// of those pages are mapped at the moment.
pub(super) fn counted_bytes() -> u64 {
    match in_pieces() {
        true => 9 << 18,
        false => 5 << 20,
    }
}

fn in_pieces() -> bool {
    *IN_PIECES.get_or_init(|| is_small() && for_each_constant_segment(cut))
}

/// A process may have some 65,000 mappings; one that embeds this engine in a large program needs them itself.
const MOST_BYTES: usize = 64 << 20;

fn is_small() -> bool {
    let mut bytes = 0usize;
    let all = for_each_constant_segment(|segment| {
        bytes = bytes.saturating_add(segment.end - segment.start);
        true
    });
    all && bytes <= MOST_BYTES
}

/// Unmaps program text and constants that nobody is using just now, that of shared libraries too.
/// They are pages of files: what is needed again is mapped again at a touch, in small pieces from the first call on.
/// What parsing, packing and planning touched then no longer counts as memory of the runs.
pub fn trim_program() {
    in_pieces();
    for_each_constant_segment(drop_pages);
}

/// Has `act` treat every segment that may not be written, of the program and of the libraries that it is linked
/// with, given in whole pages; `false` when one could not be treated.
fn for_each_constant_segment(mut act: impl FnMut(Segment) -> bool) -> bool {
    struct Walk<'a> {
        act: &'a mut dyn FnMut(Segment) -> bool,
        all: bool,
    }

    unsafe extern "C" fn visit(
        info: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        walk: *mut libc::c_void,
    ) -> libc::c_int {
        // SAFETY: the loader passes a valid description of a loaded object, program headers included, and the
        // pointer that it was given.
        let (base, headers, walk) = unsafe {
            let info = &*info;
            let count = usize::from(info.dlpi_phnum);
            if info.dlpi_phdr.is_null() || count == 0 {
                return 0;
            }
            let headers = std::slice::from_raw_parts(info.dlpi_phdr, count);
            (
                info.dlpi_addr as usize,
                headers,
                &mut *walk.cast::<Walk<'_>>(),
            )
        };
        let page_bytes = rustix::param::page_size();
        for header in headers {
            if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0 {
                let start = base + header.p_vaddr as usize;
                let end = (start + header.p_memsz as usize).next_multiple_of(page_bytes);
                let start = start / page_bytes * page_bytes;
                walk.all &= (walk.act)(Segment { start, end });
            }
        }
        0
    }

    let mut walk = Walk {
        act: &mut act,
        all: true,
    };
    // SAFETY: `visit` has the signature that is asked for, and `walk` outlives the call.
    unsafe {
        libc::dl_iterate_phdr(Some(visit), (&raw mut walk).cast());
    }
    walk.all
}

/// Addresses of pages of a file that were never written.
#[derive(Clone, Copy)]
struct Segment {
    start: usize,
    end: usize,
}

fn cut(segment: Segment) -> bool {
    if segment.end - segment.start <= PIECE_BYTES {
        return true;
    }
    if rustix::param::page_size() > PIECE_BYTES {
        return false;
    }
    // The first piece stays as it is: with a program's start, a core dump tells what it is of.
    let second = (segment.start + 1).next_multiple_of(PIECE_BYTES);
    (second..segment.end).step_by(2 * PIECE_BYTES).all(|start| {
        let end = segment.end.min(start + PIECE_BYTES);
        advise(Segment { start, end }, libc::MADV_DONTDUMP)
    })
}

fn drop_pages(segment: Segment) -> bool {
    advise(segment, libc::MADV_DONTNEED)
}

fn advise(segment: Segment, advice: libc::c_int) -> bool {
    let Segment { start, end } = segment;
    // SAFETY: only pages of segments that may not be written come here. They were never written: they are those
    // of the file, and the next touch of one that was dropped brings the same bytes.
    unsafe { libc::madvise(start as *mut libc::c_void, end - start, advice) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Sizes in bytes of this program's mappings that may be executed.
    fn code_mappings() -> Vec<usize> {
        let program = std::env::current_exe().unwrap();
        let table = fs::read_to_string("/proc/self/maps").unwrap();
        table
            .lines()
            .filter(|line| line.ends_with(program.to_str().unwrap()) && line.contains(" r-xp "))
            .map(|line| {
                let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
                let address = |text| usize::from_str_radix(text, 16).unwrap();
                address(end) - address(start)
            })
            .collect()
    }

    #[test]
    fn code_is_mapped_in_small_pieces() {
        trim_program();
        let sizes = code_mappings();
        assert!(in_pieces());
        assert!(sizes.len() > 8, "{sizes:?}");
        assert!(sizes.iter().all(|&s| s <= PIECE_BYTES), "{sizes:?}");
        // Again does nothing more.
        trim_program();
        assert_eq!(code_mappings().len(), sizes.len());
    }
}
