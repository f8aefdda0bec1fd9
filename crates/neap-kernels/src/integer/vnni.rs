//! Sums of tiles by VNNI in vectors of 512 bits, and results of the tile before beside them.
//!
//! ```text
//!   0 to 23    sums, row by row, four panels (or three, or two) of a row side by side
//!   24 to 27   weights of four k, a register for each panel        31   four steps of a row, everywhere
//! ```
//! What is left of the registers is what [`piece`] needs. A compiler does not leave 24 sums where they are around a piece, so it is
//! spelled out, for the sizes of most tiles.

use super::beside::{Beside, Piece};
use super::dot::{MAX_PANELS, QUAD};
use super::finish::Head;
use super::pieces::piece;
use super::tile::{Reads, Tap, add_tile};
use super::tiled::Tiled;
use crate::simd::Avx512;
use std::arch::naked_asm;
use std::mem::offset_of;

type Tile = unsafe extern "sysv64" fn(reads: &mut Reads<'_>, quads: *const u8, heads: *const Head);

/// Whether tiles read so are added up here: runs are whole quads, or may be read as such.
#[inline(always)]
fn takes(reads: &Reads<'_>) -> bool {
    let lens = [reads.block_len, reads.last_len];
    let is_whole = lens.iter().all(|len| len.is_multiple_of(QUAD));
    (reads.overreads || is_whole) && !lens.contains(&0) && !reads.taps.is_empty()
}

/// # Safety
/// As [`super::tile::add_tile`], and the processor has VNNI; the piece, if any is left, is as [`piece`] needs it.
#[inline(always)]
unsafe fn run(
    tile: Tile,
    reads: &mut Reads<'_>,
    quads: *const u8,
    heads: &[Head; MAX_PANELS],
    sums: *mut i32,
    piece: &mut Piece,
) {
    let taps = reads.taps.as_mut_ptr_range();
    reads.cursor.taps = taps.start.expose_provenance();
    reads.cursor.taps_end = taps.end.expose_provenance();
    reads.cursor.sums = sums.expose_provenance();
    reads.cursor.piece = std::ptr::from_mut(piece).expose_provenance();
    // SAFETY: the caller's promise.
    unsafe { tile(reads, quads, heads.as_ptr()) }
}

/// Products of a quad, `$at` bytes behind the rows' places.
macro_rules! quad {
    ($at:literal, $(($x:literal: $($acc:literal $w:literal),*))*) => {
        concat!($(
            "vpbroadcastd zmm31, dword ptr [", $x, " + ", $at, "]\n",
            $("vpdpbusd zmm", $acc, ", zmm31, zmm", $w, "\n",)*
        )*)
    };
}

/// Loads weights of a quad, the `$quad`-th.
macro_rules! weights {
    ($quad:literal, $panels:literal, $($p:literal $w:literal),*) => {
        concat!($("vmovdqa64 zmm", $w, ", zmmword ptr [rdx + 64 * (", $p, " + ", $panels, " * ", $quad, ")]\n",)*)
    };
}

/// The function of a tile: its panels, their registers of weights, and for each row its number, its register of places
/// and those of its sums.
macro_rules! tile {
    ($name:ident, $panels:literal, $weights:tt, $copies:tt, $rows:literal: $(($r:literal $x:literal: $($acc:literal $w:literal),*))*) => {
        tile!(@ $name, $panels, $weights, $copies, $rows, [$(($r $x: $($acc $w),*))*], [$(($x: $($acc $w),*))*]);
    };
    (@ $name:ident, $panels:literal, [$($p:literal $pw:literal),*], [$($copy:literal $of:literal),*], $rows:literal,
        [$(($r:literal $x:literal: $($acc:literal $w:literal),*))*], [$($products:tt)*]) => {
        #[unsafe(naked)]
        unsafe extern "sysv64" fn $name(_: &mut Reads<'_>, _: *const u8, _: *const Head) {
            naked_asm!(
                "push rbx", "push rbp", "push r12", "push r13", "push r14", "push r15",
                "mov rax, rdx",
                "mov rdx, rsi",
                "mov rcx, qword ptr [rdi + {all_blocks}]",
                "mov qword ptr [rdi + {blocks}], rcx",
                "mov qword ptr [rdi + {step}], 0",
                concat!($("vmovdqa64 zmm", $p, ", zmmword ptr [rax + {start} + {head_bytes} * ", $p, "]\n",)*),
                concat!($("vmovdqa64 zmm", $copy, ", zmm", $of, "\n",)*),
                // A block.
                "2:",
                "mov rax, qword ptr [rdi + {block_len}]",
                "cmp qword ptr [rdi + {blocks}], 1",
                "cmove rax, qword ptr [rdi + {last_len}]",
                "mov qword ptr [rdi + {len}], rax",
                "mov rsi, qword ptr [rdi + {taps}]",
                // A tap.
                "3:",
                "mov qword ptr [rdi + {tap}], rsi",
                "mov eax, dword ptr [rsi + {inside}]",
                "mov rcx, qword ptr [rdi + {first}]",
                "not eax",
                "lea rbx, [rdi + 8 * rcx + {corners}]",
                "shr eax, cl",
                "mov rcx, qword ptr [rsi + {tap_offset}]",
                "add rcx, qword ptr [rdi + {step}]",
                concat!("test eax, (1 << ", $rows, ") - 1"),
                "jne 4f",
                "mov rax, rcx",
                concat!($("mov ", $x, ", qword ptr [rbx + 8 * ", $r, "]\n", "add ", $x, ", rax\n",)*),
                "jmp 5f",
                // Some rows are in the padding.
                "4:",
                "mov qword ptr [rdi + {offset}], rcx",
                concat!($(
                    "mov ", $x, ", qword ptr [rbx + 8 * ", $r, "]\n",
                    "add ", $x, ", qword ptr [rdi + {offset}]\n",
                    "bt eax, ", $r, "\n",
                    "cmovc ", $x, ", qword ptr [rdi + {outside}]\n",
                )*),
                "5:",
                "mov rax, qword ptr [rdi + {len}]",
                "cmp rax, 16",
                "jb 7f",
                // Sixteen k.
                "6:",
                weights!("0", $panels, $($p $pw),*),
                quad!("0", $($products)*),
                weights!("1", $panels, $($p $pw),*),
                quad!("4", $($products)*),
                weights!("2", $panels, $($p $pw),*),
                quad!("8", $($products)*),
                weights!("3", $panels, $($p $pw),*),
                quad!("12", $($products)*),
                concat!("add rdx, 64 * 4 * ", $panels),
                "sub rax, 16",
                "je 8f",
                concat!($("add ", $x, ", 16\n",)*),
                "cmp rax, 16",
                "jae 6b",
                // Four k, of which some may be none.
                "7:",
                weights!("0", $panels, $($p $pw),*),
                quad!("0", $($products)*),
                concat!("add rdx, 64 * ", $panels),
                concat!($("add ", $x, ", 4\n",)*),
                "sub rax, 4",
                "ja 7b",
                "8:",
                "mov rax, qword ptr [rdi + {piece_at}]",
                "cmp qword ptr [rax + {left}], 0",
                "je 9f",
                "push rdi", "push rdx",
                "mov rdi, rax",
                "call {piece}",
                "pop rdx", "pop rdi",
                "9:",
                "mov rsi, qword ptr [rdi + {tap}]",
                "add rsi, {tap_bytes}",
                "cmp rsi, qword ptr [rdi + {taps_end}]",
                "jne 3b",
                "mov rax, qword ptr [rdi + {block_step}]",
                "add qword ptr [rdi + {step}], rax",
                "dec qword ptr [rdi + {blocks}]",
                "jne 2b",
                "mov rax, qword ptr [rdi + {sums}]",
                concat!($($("vmovdqa64 zmmword ptr [rax + 64 * ", $acc, "], zmm", $acc, "\n",)*)*),
                "pop r15", "pop r14", "pop r13", "pop r12", "pop rbp", "pop rbx",
                "vzeroupper",
                "ret",
                corners = const offset_of!(Reads<'static>, corners),
                first = const offset_of!(Reads<'static>, first),
                all_blocks = const offset_of!(Reads<'static>, blocks),
                block_step = const offset_of!(Reads<'static>, block_step),
                block_len = const offset_of!(Reads<'static>, block_len),
                last_len = const offset_of!(Reads<'static>, last_len),
                outside = const offset_of!(Reads<'static>, outside),
                taps = const offset_of!(Reads<'static>, cursor.taps),
                taps_end = const offset_of!(Reads<'static>, cursor.taps_end),
                tap = const offset_of!(Reads<'static>, cursor.tap),
                sums = const offset_of!(Reads<'static>, cursor.sums),
                blocks = const offset_of!(Reads<'static>, cursor.blocks),
                len = const offset_of!(Reads<'static>, cursor.len),
                step = const offset_of!(Reads<'static>, cursor.step),
                offset = const offset_of!(Reads<'static>, cursor.offset),
                piece_at = const offset_of!(Reads<'static>, cursor.piece),
                left = const offset_of!(Piece, left),
                start = const offset_of!(Head, start),
                head_bytes = const size_of::<Head>(),
                inside = const offset_of!(Tap, inside),
                tap_offset = const offset_of!(Tap, offset),
                tap_bytes = const size_of::<Tap>(),
                piece = sym piece,
            )
        }
    };
}

tile!(four_by_six, "4", ["0" "24", "1" "25", "2" "26", "3" "27"],
    ["4" "0", "5" "1", "6" "2", "7" "3", "8" "0", "9" "1", "10" "2", "11" "3", "12" "0", "13" "1", "14" "2", "15" "3", "16" "0", "17" "1", "18" "2", "19" "3", "20" "0", "21" "1", "22" "2", "23" "3"],
    "6":
    ("0" "r8": "0" "24", "1" "25", "2" "26", "3" "27")
    ("1" "r9": "4" "24", "5" "25", "6" "26", "7" "27")
    ("2" "r10": "8" "24", "9" "25", "10" "26", "11" "27")
    ("3" "r11": "12" "24", "13" "25", "14" "26", "15" "27")
    ("4" "r12": "16" "24", "17" "25", "18" "26", "19" "27")
    ("5" "r13": "20" "24", "21" "25", "22" "26", "23" "27"));
tile!(four_by_five, "4", ["0" "24", "1" "25", "2" "26", "3" "27"],
    ["4" "0", "5" "1", "6" "2", "7" "3", "8" "0", "9" "1", "10" "2", "11" "3", "12" "0", "13" "1", "14" "2", "15" "3", "16" "0", "17" "1", "18" "2", "19" "3"],
    "5":
    ("0" "r8": "0" "24", "1" "25", "2" "26", "3" "27")
    ("1" "r9": "4" "24", "5" "25", "6" "26", "7" "27")
    ("2" "r10": "8" "24", "9" "25", "10" "26", "11" "27")
    ("3" "r11": "12" "24", "13" "25", "14" "26", "15" "27")
    ("4" "r12": "16" "24", "17" "25", "18" "26", "19" "27"));
tile!(four_by_four, "4", ["0" "24", "1" "25", "2" "26", "3" "27"],
    ["4" "0", "5" "1", "6" "2", "7" "3", "8" "0", "9" "1", "10" "2", "11" "3", "12" "0", "13" "1", "14" "2", "15" "3"],
    "4":
    ("0" "r8": "0" "24", "1" "25", "2" "26", "3" "27")
    ("1" "r9": "4" "24", "5" "25", "6" "26", "7" "27")
    ("2" "r10": "8" "24", "9" "25", "10" "26", "11" "27")
    ("3" "r11": "12" "24", "13" "25", "14" "26", "15" "27"));
tile!(three_by_eight, "3", ["0" "24", "1" "25", "2" "26"],
    ["3" "0", "4" "1", "5" "2", "6" "0", "7" "1", "8" "2", "9" "0", "10" "1", "11" "2", "12" "0", "13" "1", "14" "2", "15" "0", "16" "1", "17" "2", "18" "0", "19" "1", "20" "2", "21" "0", "22" "1", "23" "2"],
    "8":
    ("0" "r8": "0" "24", "1" "25", "2" "26")
    ("1" "r9": "3" "24", "4" "25", "5" "26")
    ("2" "r10": "6" "24", "7" "25", "8" "26")
    ("3" "r11": "9" "24", "10" "25", "11" "26")
    ("4" "r12": "12" "24", "13" "25", "14" "26")
    ("5" "r13": "15" "24", "16" "25", "17" "26")
    ("6" "r14": "18" "24", "19" "25", "20" "26")
    ("7" "r15": "21" "24", "22" "25", "23" "26"));
tile!(three_by_seven, "3", ["0" "24", "1" "25", "2" "26"],
    ["3" "0", "4" "1", "5" "2", "6" "0", "7" "1", "8" "2", "9" "0", "10" "1", "11" "2", "12" "0", "13" "1", "14" "2", "15" "0", "16" "1", "17" "2", "18" "0", "19" "1", "20" "2"],
    "7":
    ("0" "r8": "0" "24", "1" "25", "2" "26")
    ("1" "r9": "3" "24", "4" "25", "5" "26")
    ("2" "r10": "6" "24", "7" "25", "8" "26")
    ("3" "r11": "9" "24", "10" "25", "11" "26")
    ("4" "r12": "12" "24", "13" "25", "14" "26")
    ("5" "r13": "15" "24", "16" "25", "17" "26")
    ("6" "r14": "18" "24", "19" "25", "20" "26"));
tile!(two_by_twelve, "2", ["0" "24", "1" "25"],
    ["2" "0", "3" "1", "4" "0", "5" "1", "6" "0", "7" "1", "8" "0", "9" "1", "10" "0", "11" "1", "12" "0", "13" "1", "14" "0", "15" "1", "16" "0", "17" "1", "18" "0", "19" "1", "20" "0", "21" "1", "22" "0", "23" "1"],
    "12":
    ("0" "r8": "0" "24", "1" "25")
    ("1" "r9": "2" "24", "3" "25")
    ("2" "r10": "4" "24", "5" "25")
    ("3" "r11": "6" "24", "7" "25")
    ("4" "r12": "8" "24", "9" "25")
    ("5" "r13": "10" "24", "11" "25")
    ("6" "r14": "12" "24", "13" "25")
    ("7" "r15": "14" "24", "15" "25")
    ("8" "rbp": "16" "24", "17" "25")
    ("9" "rsi": "18" "24", "19" "25")
    ("10" "rcx": "20" "24", "21" "25")
    ("11" "rbx": "22" "24", "23" "25"));
tile!(two_by_eleven, "2", ["0" "24", "1" "25"],
    ["2" "0", "3" "1", "4" "0", "5" "1", "6" "0", "7" "1", "8" "0", "9" "1", "10" "0", "11" "1", "12" "0", "13" "1", "14" "0", "15" "1", "16" "0", "17" "1", "18" "0", "19" "1", "20" "0", "21" "1"],
    "11":
    ("0" "r8": "0" "24", "1" "25")
    ("1" "r9": "2" "24", "3" "25")
    ("2" "r10": "4" "24", "5" "25")
    ("3" "r11": "6" "24", "7" "25")
    ("4" "r12": "8" "24", "9" "25")
    ("5" "r13": "10" "24", "11" "25")
    ("6" "r14": "12" "24", "13" "25")
    ("7" "r15": "14" "24", "15" "25")
    ("8" "rbp": "16" "24", "17" "25")
    ("9" "rsi": "18" "24", "19" "25")
    ("10" "rcx": "20" "24", "21" "25"));
tile!(two_by_ten, "2", ["0" "24", "1" "25"],
    ["2" "0", "3" "1", "4" "0", "5" "1", "6" "0", "7" "1", "8" "0", "9" "1", "10" "0", "11" "1", "12" "0", "13" "1", "14" "0", "15" "1", "16" "0", "17" "1", "18" "0", "19" "1"],
    "10":
    ("0" "r8": "0" "24", "1" "25")
    ("1" "r9": "2" "24", "3" "25")
    ("2" "r10": "4" "24", "5" "25")
    ("3" "r11": "6" "24", "7" "25")
    ("4" "r12": "8" "24", "9" "25")
    ("5" "r13": "10" "24", "11" "25")
    ("6" "r14": "12" "24", "13" "25")
    ("7" "r15": "14" "24", "15" "25")
    ("8" "rbp": "16" "24", "17" "25")
    ("9" "rsi": "18" "24", "19" "25"));
tile!(two_by_nine, "2", ["0" "24", "1" "25"],
    ["2" "0", "3" "1", "4" "0", "5" "1", "6" "0", "7" "1", "8" "0", "9" "1", "10" "0", "11" "1", "12" "0", "13" "1", "14" "0", "15" "1", "16" "0", "17" "1"],
    "9":
    ("0" "r8": "0" "24", "1" "25")
    ("1" "r9": "2" "24", "3" "25")
    ("2" "r10": "4" "24", "5" "25")
    ("3" "r11": "6" "24", "7" "25")
    ("4" "r12": "8" "24", "9" "25")
    ("5" "r13": "10" "24", "11" "25")
    ("6" "r14": "12" "24", "13" "25")
    ("7" "r15": "14" "24", "15" "25")
    ("8" "rbp": "16" "24", "17" "25"));

/// What adds up tiles of so many panels and rows, if anything here does.
const fn tile(panels: usize, rows: usize) -> Option<Tile> {
    match (panels, rows) {
        (4, 6) => Some(four_by_six),
        (4, 5) => Some(four_by_five),
        (4, 4) => Some(four_by_four),
        (3, 8) => Some(three_by_eight),
        (3, 7) => Some(three_by_seven),
        (2, 12) => Some(two_by_twelve),
        (2, 11) => Some(two_by_eleven),
        (2, 10) => Some(two_by_ten),
        (2, 9) => Some(two_by_nine),
        _ => None,
    }
}

impl Tiled for Avx512 {
    #[inline(always)]
    unsafe fn piece(self, of: &mut Piece) {
        // SAFETY: the caller's promise; the processor has the instructions.
        unsafe { piece(of) }
    }

    #[inline(always)]
    unsafe fn tile<const P: usize, const R: usize>(
        self,
        reads: &mut Reads<'_>,
        quads: *const u8,
        heads: &[Head; MAX_PANELS],
        sums: *mut i32,
        beside: &mut Beside<'_>,
    ) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        #[inline(never)]
        unsafe fn run<const P: usize, const R: usize>(
            reads: &Reads<'_>,
            quads: *const u8,
            heads: &[Head; MAX_PANELS],
            sums: *mut i32,
        ) {
            // SAFETY: the caller's promise.
            unsafe { add_tile::<_, P, R>(Avx512::new(), reads, quads, heads, sums) }
        }
        // SAFETY: the caller's promise; the driver takes this set only where the processor has these instructions.
        unsafe {
            match const { tile(P, R) } {
                Some(tile) if takes(reads) => {
                    self::run(tile, reads, quads, heads, sums, beside.next());
                }
                _ => run::<P, R>(reads, quads, heads, sums),
            }
        }
    }
}
