//! Results of a panel of a tile, with AVX-512, in few registers: the sums of the next tile stay in theirs.
//!
//! A compiler does not keep 24 sums in registers around this, so it is spelled out, once for all sizes of tiles, and called in a way that it
//! leaves registers 0 to 23 of 512 bits alone.

use super::beside::{Bounds, Piece, Sum};
use super::finish::Head;
use std::arch::naked_asm;
use std::mem::offset_of;

/// Makes a panel's results and goes on to the next panel; in `rdi` is the piece. Changes `rax`, `rcx`, `rdx`, `rsi`, `r9` and registers
/// 24 to 31.
///
/// # Safety
/// The processor has AVX-512 (F, BW, VL); the piece's sums, head, rows of results and residual are there.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn piece(of: &mut Piece) {
    naked_asm!(
        "cmp byte ptr [rdi + {is_sum}], 0",
        "jne {sum}",
        "jmp {plain}",
        is_sum = const offset_of!(Piece, is_sum),
        plain = sym plain,
        sum = sym sum,
    )
}

/// Brings numbers of a row, whose sums are `$sums`, into `$v`.
macro_rules! plain_number {
    ($v:literal, $sums:literal, $residual:literal) => {
        concat!(
            "vcvtdq2ps zmm",
            $v,
            ", zmmword ptr [",
            $sums,
            "]\n",
            "vmulps zmm",
            $v,
            ", zmm",
            $v,
            ", zmm24\n",
            "vaddps zmm",
            $v,
            ", zmm",
            $v,
            ", zmm25\n",
            "vmulps zmm",
            $v,
            ", zmm",
            $v,
            ", zmm26\n",
            "vcvtps2dq zmm",
            $v,
            ", zmm",
            $v,
            "\n",
        )
    };
}

/// The same, rounded and with a residual.
macro_rules! sum_number {
    ($v:literal, $sums:literal, $residual:literal) => {
        concat!(
            "vpmovzxbd zmm31, xmmword ptr [rdx + r9 + ",
            $residual,
            "]\n",
            "vcvtdq2ps zmm",
            $v,
            ", zmmword ptr [",
            $sums,
            "]\n",
            "vpsubd zmm31, zmm31, dword ptr [rdi + {residual_zero}]{{1to16}}\n",
            "vmulps zmm",
            $v,
            ", zmm",
            $v,
            ", zmm24\n",
            "vcvtdq2ps zmm31, zmm31\n",
            "vaddps zmm",
            $v,
            ", zmm",
            $v,
            ", zmm25\n",
            "vmulps zmm31, zmm31, dword ptr [rdi + {residual_scale}]{{1to16}}\n",
            "vmulps zmm",
            $v,
            ", zmm",
            $v,
            ", dword ptr [rdi + {inverse}]{{1to16}}\n",
            "vcvtps2dq zmm",
            $v,
            ", zmm",
            $v,
            "\n",
            "vpmaxsd zmm",
            $v,
            ", zmm",
            $v,
            ", dword ptr [rdi + {least}]{{1to16}}\n",
            "vpminsd zmm",
            $v,
            ", zmm",
            $v,
            ", dword ptr [rdi + {most}]{{1to16}}\n",
            "vcvtdq2ps zmm",
            $v,
            ", zmm",
            $v,
            "\n",
            "vmulps zmm",
            $v,
            ", zmm",
            $v,
            ", zmm27\n",
            "vaddps zmm",
            $v,
            ", zmm",
            $v,
            ", zmm31\n",
            "vmulps zmm",
            $v,
            ", zmm",
            $v,
            ", zmm26\n",
            "vcvtps2dq zmm",
            $v,
            ", zmm",
            $v,
            "\n",
        )
    };
}

/// Makes steps in bytes of two registers of words, 28 and 29, with `$store`.
macro_rules! bytes {
    ($a:literal, $b:literal, $store:literal) => {
        concat!(
            "vpackuswb zmm28, zmm",
            $a,
            ", zmm",
            $b,
            "\n",
            "vpmaxub zmm28, zmm28, zmmword ptr [rdi + {low}]\n",
            "vmovdqa64 zmm29, zmmword ptr [rdi + {places}]\n",
            "vpminub zmm28, zmm28, zmmword ptr [rdi + {high}]\n",
            "vpermd zmm28, zmm29, zmm28\n",
            $store,
            "\n",
        )
    };
}

/// All rows, four at a time, then two, then one.
macro_rules! rows {
    ($number:ident, $begin:literal) => {
        concat!(
            "mov rax, qword ptr [rdi + {sums}]\n",
            "mov rcx, qword ptr [rdi + {step}]\n",
            "mov rdx, qword ptr [rdi + {out}]\n",
            "mov rsi, qword ptr [rdi + {head}]\n",
            "vmovups zmm24, zmmword ptr [rsi + {scale}]\n",
            "vmovups zmm25, zmmword ptr [rsi + {bias}]\n",
            "vbroadcastss zmm26, dword ptr [rdi + {last_inverse}]\n",
            "mov rsi, qword ptr [rdi + {rows}]\n",
            $begin,
            "sub rsi, 4\n",
            "jb 3f\n",
            "2:\n",
            $number!("28", "rax", "0"),
            $number!("29", "rax + rcx", "16"),
            "lea rax, [rax + 2 * rcx]\n",
            "vpackssdw zmm28, zmm28, zmm29\n",
            $number!("29", "rax", "32"),
            $number!("30", "rax + rcx", "48"),
            "lea rax, [rax + 2 * rcx]\n",
            "vpackssdw zmm29, zmm29, zmm30\n",
            "vpaddsw zmm28, zmm28, zmmword ptr [rdi + {zero}]\n",
            "vpaddsw zmm29, zmm29, zmmword ptr [rdi + {zero}]\n",
            bytes!("28", "29", "vmovdqu64 zmmword ptr [rdx], zmm28"),
            "add rdx, 64\n",
            "sub rsi, 4\n",
            "jae 2b\n",
            "3:\n",
            "test rsi, 2\n",
            "je 4f\n",
            $number!("28", "rax", "0"),
            $number!("29", "rax + rcx", "16"),
            "lea rax, [rax + 2 * rcx]\n",
            "vpackssdw zmm28, zmm28, zmm29\n",
            "vpaddsw zmm28, zmm28, zmmword ptr [rdi + {zero}]\n",
            bytes!("28", "28", "vmovdqu64 ymmword ptr [rdx], ymm28"),
            "add rdx, 32\n",
            "4:\n",
            "test rsi, 1\n",
            "je 5f\n",
            $number!("28", "rax", "0"),
            "vpackssdw zmm28, zmm28, zmm28\n",
            "vpaddsw zmm28, zmm28, zmmword ptr [rdi + {zero}]\n",
            bytes!("28", "28", "vmovdqu64 xmmword ptr [rdx], xmm28"),
            "5:\n",
            "mov rax, qword ptr [rdi + {panel}]\n",
            "add qword ptr [rdi + {sums}], 64\n",
            "add qword ptr [rdi + {head}], {head_bytes}\n",
            "add qword ptr [rdi + {out}], rax\n",
            "add qword ptr [rdi + {residual}], rax\n",
            "dec qword ptr [rdi + {left}]\n",
            "ret\n",
        )
    };
}

/// For sums of kind `$number`, after `$begin`, which brings what a residual needs into registers.
macro_rules! function {
    ($name:ident, $number:ident, $begin:literal, $($operand:ident = $field:expr),*) => {
        /// # Safety
        /// Only [`piece`] calls it.
        #[unsafe(naked)]
        unsafe extern "sysv64" fn $name() {
            naked_asm!(
                rows!($number, $begin),
                sums = const offset_of!(Piece, sums),
                step = const offset_of!(Piece, step),
                out = const offset_of!(Piece, out),
                head = const offset_of!(Piece, head),
                rows = const offset_of!(Piece, rows),
                residual = const offset_of!(Piece, residual),
                panel = const offset_of!(Piece, panel),
                left = const offset_of!(Piece, left),
                head_bytes = const size_of::<Head>(),
                scale = const offset_of!(Head, scale),
                bias = const offset_of!(Head, bias),
                last_inverse = const offset_of!(Piece, last) + offset_of!(Bounds, inverse),
                zero = const offset_of!(Piece, last) + offset_of!(Bounds, zero),
                low = const offset_of!(Piece, last) + offset_of!(Bounds, low),
                high = const offset_of!(Piece, last) + offset_of!(Bounds, high),
                places = const offset_of!(Piece, last) + offset_of!(Bounds, places),
                $($operand = const $field),*
            )
        }
    };
}

function!(plain, plain_number, "",);
function!(
    sum,
    sum_number,
    "mov r9, qword ptr [rdi + {residual}]\n\
     sub r9, rdx\n\
     vbroadcastss zmm27, dword ptr [rdi + {before_scale}]\n",
    before_scale = offset_of!(Piece, sum) + offset_of!(Sum, scale),
    inverse = offset_of!(Piece, sum) + offset_of!(Sum, inverse),
    least = offset_of!(Piece, sum) + offset_of!(Sum, least),
    most = offset_of!(Piece, sum) + offset_of!(Sum, most),
    residual_zero = offset_of!(Piece, sum) + offset_of!(Sum, residual_zero),
    residual_scale = offset_of!(Piece, sum) + offset_of!(Sum, residual_scale)
);
