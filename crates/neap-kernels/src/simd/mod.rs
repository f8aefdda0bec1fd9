//! The 16-lane f32 vector every kernel is written in, and the run-time choice of instruction set.
//!
//! # How to write a kernel
//!
//! Write it once, generic over [`Simd`], marked `#[inline(always)]`, with the instruction-set
//! token as its first parameter; then name it in [`simd_kernel!`], which makes the function
//! that other code calls: it takes an [`Isa`] first and runs the copy compiled for it.
//!
//! ```ignore
//! #[inline(always)]
//! fn scale_generic<S: Simd>(s: S, x: &mut [f32], factor: f32) {
//!     let f = s.splat(factor);
//!     let mut blocks = x.chunks_exact_mut(LANES);
//!     for block in &mut blocks {
//!         // SAFETY: a block is 16 floats.
//!         unsafe { s.store(block.as_mut_ptr(), s.mul(f, s.load(block.as_ptr()))) };
//!     }
//!     let tail = blocks.into_remainder();
//!     // SAFETY: at most `tail.len()` floats are touched.
//!     unsafe {
//!         let v = s.load_partial(tail.as_ptr(), tail.len());
//!         s.store_partial(tail.as_mut_ptr(), tail.len(), s.mul(f, v));
//!     }
//! }
//! simd_kernel! {
//!     /// Multiplies every element of `x` by `factor`.
//!     pub fn scale(x: &mut [f32], factor: f32) = scale_generic;
//! }
//! ```
//!
//! (`pub unsafe fn … = …;` works too, for a generic that is an `unsafe fn`.)
//! Everything the generic calls must be `#[inline(always)]` as well, and closures are best
//! avoided: code that is not inlined is compiled without the instruction set.
//!
//! # Numbers
//!
//! Lane-wise operations round as IEEE 754 says. `fma` rounds once, except on [`Portable`],
//! which rounds twice where the build target has no fused instruction. Reductions always add
//! in the same tree: lane `i` with `i+8`, then `i+4`, `i+2`, `i+1`.

pub(crate) mod coded;
pub mod math;
pub(crate) mod pairs;
mod portable;
pub use portable::Portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub use {avx2::Avx2Fma, avx512::Avx512};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tiles;

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;

/// Lanes of a vector, and channels of a block or panel.
pub const LANES: usize = 16;

/// An instruction set this processor has; holding one is the proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Kind, Tiles);

/// Whether tiles of bytes are multiplied at once, beside vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tiles {
    None,
    #[cfg(target_arch = "x86_64")]
    Amx,
}

/// The instruction sets known to this build, best last.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2Fma,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Isa {
    /// The best instruction set of this processor. Ask once and pass the answer on.
    #[must_use]
    pub fn detect() -> Self {
        let mut best = Isa(Kind::Portable, Tiles::None);
        for isa in Self::available() {
            best = isa;
        }
        best
    }

    /// Every instruction set of this processor, from portable to best.
    pub fn available() -> impl Iterator<Item = Isa> {
        ALL.iter().map(|&(isa, _)| isa).filter(|&isa| has(isa))
    }

    /// The instruction set of that name (as [`Isa::name`] gives it), where the processor has it.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::available().find(|isa| isa.name() == name)
    }

    /// A short lower-case name: `portable`, `avx2`, `avx512`, `amx` (which is AVX-512 and tiles), `neon`.
    #[must_use]
    pub fn name(self) -> &'static str {
        ALL.iter()
            .find(|(isa, _)| *isa == self)
            .map_or("portable", |&(_, name)| name)
    }

    /// The one whose kernels widen narrow weights: AVX2 in place of AVX-512.
    #[must_use]
    pub(crate) fn of_narrow_weights(self) -> Self {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => Isa(Kind::Avx2Fma, Tiles::None),
            _ => self,
        }
    }

    /// Whether [`Kind::Avx512`] has VNNI, and AMX beside it.
    #[cfg(target_arch = "x86_64")]
    #[must_use]
    pub(crate) fn has_tiles(self) -> bool {
        self.1 == Tiles::Amx
    }

    #[doc(hidden)]
    #[must_use]
    pub fn kind(self) -> Kind {
        self.0
    }
}

const ALL: &[(Isa, &str)] = &[
    (Isa(Kind::Portable, Tiles::None), "portable"),
    #[cfg(target_arch = "x86_64")]
    (Isa(Kind::Avx2Fma, Tiles::None), "avx2"),
    #[cfg(target_arch = "x86_64")]
    (Isa(Kind::Avx512, Tiles::None), "avx512"),
    #[cfg(target_arch = "x86_64")]
    (Isa(Kind::Avx512, Tiles::Amx), "amx"),
    #[cfg(target_arch = "aarch64")]
    (Isa(Kind::Neon, Tiles::None), "neon"),
];

fn has(isa: Isa) -> bool {
    has_vectors(isa.0)
        && match isa.1 {
            Tiles::None => true,
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Tiles::Amx => std::arch::is_x86_feature_detected!("avx512vnni") && tiles::are_allowed(),
            #[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
            Tiles::Amx => false,
        }
}

fn has_vectors(kind: Kind) -> bool {
    match kind {
        Kind::Portable => true,
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2Fma => {
            std::arch::is_x86_feature_detected!("avx2")
                && std::arch::is_x86_feature_detected!("fma")
                && std::arch::is_x86_feature_detected!("f16c")
        }
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => {
            std::arch::is_x86_feature_detected!("avx512f")
                && std::arch::is_x86_feature_detected!("avx512bw")
                && std::arch::is_x86_feature_detected!("avx512dq")
                && std::arch::is_x86_feature_detected!("avx512vl")
                && has_vectors(Kind::Avx2Fma)
        }
        // Part of the architecture's baseline.
        #[cfg(target_arch = "aarch64")]
        Kind::Neon => true,
    }
}

/// A vector of 16 f32 lanes. The value is a zero-sized token proving that the processor has
/// the instructions; all methods are inlined into the caller's target features.
pub trait Simd: Copy + Send + Sync + 'static {
    /// 16 f32 lanes.
    type V: Copy;
    /// 16 truth values.
    type M: Copy;

    /// How many vectors fit in the register file.
    const VECTOR_REGISTERS: usize;

    fn splat(self, x: f32) -> Self::V;

    /// Loads 16 floats; no alignment needed.
    ///
    /// # Safety
    /// `p` is readable for 16 floats.
    unsafe fn load(self, p: *const f32) -> Self::V;

    /// Stores 16 floats; no alignment needed.
    ///
    /// # Safety
    /// `p` is writable for 16 floats.
    unsafe fn store(self, p: *mut f32, v: Self::V);

    /// Loads `n` floats into the first lanes, zero in the rest. `n` above 16 counts as 16.
    ///
    /// # Safety
    /// `p` is readable for `min(n, 16)` floats.
    unsafe fn load_partial(self, p: *const f32, n: usize) -> Self::V;

    /// Stores the first `n` lanes and touches nothing else. `n` above 16 counts as 16.
    ///
    /// # Safety
    /// `p` is writable for `min(n, 16)` floats.
    unsafe fn store_partial(self, p: *mut f32, n: usize, v: Self::V);

    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a*b + c`
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a*b`
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger; `b` where either is NaN (so `max(splat(0.0), x)` keeps a NaN of `x`).
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller; `b` where either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    fn neg(self, a: Self::V) -> Self::V;
    fn abs(self, a: Self::V) -> Self::V;
    /// The magnitude of `a` with the sign of `sign`.
    fn copysign(self, a: Self::V, sign: Self::V) -> Self::V;
    fn sqrt(self, a: Self::V) -> Self::V;

    /// To the nearest integer, ties to even.
    fn round(self, a: Self::V) -> Self::V;
    fn floor(self, a: Self::V) -> Self::V;
    fn ceil(self, a: Self::V) -> Self::V;
    /// 2 to the power `n`; `n` holds integers in `-126..=127` (anything else gives garbage).
    fn pow2(self, n: Self::V) -> Self::V;
    /// Splits positive normal numbers: `a = m * 2^e` with `1 <= m < 2`; returns `(m, e)`.
    fn split_exponent(self, a: Self::V) -> (Self::V, Self::V);

    /// `a < b`; false where either is NaN.
    fn lt(self, a: Self::V, b: Self::V) -> Self::M;
    /// `a <= b`; false where either is NaN.
    fn le(self, a: Self::V, b: Self::V) -> Self::M;
    /// `a == b`; false where either is NaN.
    fn eq(self, a: Self::V, b: Self::V) -> Self::M;
    /// `yes` where the mask is set, `no` elsewhere.
    fn select(self, mask: Self::M, yes: Self::V, no: Self::V) -> Self::V;

    /// Sum of the lanes, in the tree order given at the top of the module.
    fn reduce_sum(self, v: Self::V) -> f32;
    /// Largest lane (NaN lanes give an unspecified lane).
    fn reduce_max(self, v: Self::V) -> f32;
    /// Smallest lane (NaN lanes give an unspecified lane).
    fn reduce_min(self, v: Self::V) -> f32;

    /// Loads 16 IEEE 754 half floats, exactly.
    ///
    /// # Safety
    /// `p` is readable for 32 bytes.
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe {
            load_each(self, p.cast::<[u8; 2]>(), |b| {
                f16_to_f32(u16::from_le_bytes(b))
            })
        }
    }

    /// Loads 16 bfloat16, exactly.
    ///
    /// # Safety
    /// `p` is readable for 32 bytes.
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u8) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe {
            load_each(self, p.cast::<[u8; 2]>(), |b| {
                f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)
            })
        }
    }

    /// Loads 16 signed bytes, exactly.
    ///
    /// # Safety
    /// `p` is readable for 16 bytes.
    #[inline(always)]
    unsafe fn load_i8(self, p: *const u8) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { load_each(self, p.cast::<i8>(), f32::from) }
    }

    /// Loads 16 integers of 0 to 15 from 8 bytes: lane `i` from the low half of byte `i`, lane `i + 8` from its high
    /// half.
    ///
    /// # Safety
    /// `p` is readable for 8 bytes.
    #[inline(always)]
    unsafe fn load_u4(self, p: *const u8) -> Self::V {
        let mut a = [0.0; LANES];
        for i in 0..LANES / 2 {
            // SAFETY: the caller's promise.
            let byte = unsafe { *p.add(i) };
            a[i] = f32::from(byte & 15);
            a[i + LANES / 2] = f32::from(byte >> 4);
        }
        self.from_array(a)
    }

    /// What [`Simd::load_u4`] loads, less whole numbers that a signed byte holds: exactly.
    ///
    /// # Safety
    /// As [`Simd::load_u4`].
    #[inline(always)]
    unsafe fn load_u4_less(self, p: *const u8, zero: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { self.sub(self.load_u4(p), zero) }
    }

    /// Loads 16 weights of a panel whose exponents are codes ([`coded`]).
    ///
    /// # Safety
    /// `at` is a k of the panel that begins at `head`.
    #[inline(always)]
    unsafe fn load_coded(self, at: *const u8, head: *const f32) -> Self::V {
        // SAFETY: the caller's promise.
        self.from_array(unsafe { coded::widen(at, head) })
    }

    /// In every group of `width` lanes, broadcasts the group's lane `j` to the whole group.
    /// `width` is 2 or 4 and `j < width`; both must be constants after inlining.
    fn group_broadcast(self, v: Self::V, width: usize, j: usize) -> Self::V;

    /// In every half of the vector, its quarter `quarter` (0 or 1: four lanes) twice. Then
    /// `group_broadcast(_, 4, j)` broadcasts lane `4 * quarter + j` of each half.
    fn spread_quarter(self, v: Self::V, quarter: usize) -> Self::V;

    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }

    /// `a > b`; false where either is NaN.
    #[inline(always)]
    fn gt(self, a: Self::V, b: Self::V) -> Self::M {
        self.lt(b, a)
    }

    /// `a >= b`; false where either is NaN.
    #[inline(always)]
    fn ge(self, a: Self::V, b: Self::V) -> Self::M {
        self.le(b, a)
    }

    /// `min(max(x, low), high)` that keeps NaN.
    #[inline(always)]
    fn clamp(self, x: Self::V, low: Self::V, high: Self::V) -> Self::V {
        self.min(high, self.max(low, x))
    }

    #[inline(always)]
    fn to_array(self, v: Self::V) -> [f32; LANES] {
        let mut a = [0.0; LANES];
        // SAFETY: the array is 16 floats.
        unsafe { self.store(a.as_mut_ptr(), v) };
        a
    }

    #[inline(always)]
    #[allow(clippy::wrong_self_convention)] // `self` is the token, not the vector
    fn from_array(self, a: [f32; LANES]) -> Self::V {
        // SAFETY: the array is 16 floats.
        unsafe { self.load(a.as_ptr()) }
    }
}

/// Loads 16 elements one by one.
///
/// # Safety
/// `p` is readable for 16 elements.
#[inline(always)]
unsafe fn load_each<S: Simd, T: Copy>(s: S, p: *const T, widen: impl Fn(T) -> f32) -> S::V {
    let mut a = [0.0; LANES];
    for (i, x) in a.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *x = widen(unsafe { p.add(i).read_unaligned() });
    }
    s.from_array(a)
}

/// An IEEE 754 half float, exactly: subnormal numbers, infinities and NaN too.
#[inline(always)]
#[must_use]
pub fn f16_to_f32(half: u16) -> f32 {
    /// From the exponent bias of half floats to that of `f32`.
    const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
    let magnitude = u32::from(half & 0x7fff) << 13;
    let finite = (f32::from_bits(magnitude) * REBIAS).to_bits();
    let bits = if half & 0x7c00 == 0x7c00 {
        magnitude | 0x7f80_0000
    } else {
        finite
    };
    f32::from_bits(bits | (u32::from(half & 0x8000) << 16))
}

/// Hints that the cache line at `p` will be read soon. Never faults.
#[inline(always)]
pub fn prefetch(p: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing as far as the program can see, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch reads nothing as far as the program can see, whatever the address.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}

/// Hints that the cache line at `p` will be read, but not at once. Never faults.
#[inline(always)]
pub fn prefetch_far(p: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing as far as the program can see, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch reads nothing as far as the program can see, whatever the address.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{p}]", p = in(reg) p, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}

/// Makes the callable copies of a generic kernel: see the top of [`crate::simd`].
#[doc(hidden)]
#[macro_export]
macro_rules! simd_kernel {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $generic:ident;) => {
        $(#[$meta])*
        $vis fn $name(isa: $crate::simd::Isa, $($arg: $ty),*) $(-> $ret)? {
            match isa.kind() {
                $crate::simd::Kind::Portable => $generic($crate::simd::Portable, $($arg),*),
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Kind::Avx2Fma => {
                    #[target_feature(enable = "avx2,fma,f16c")]
                    fn run($($arg: $ty),*) $(-> $ret)? {
                        $generic($crate::simd::Avx2Fma::new(), $($arg),*)
                    }
                    // SAFETY: an `Isa` of this kind exists only where the processor has it.
                    unsafe { run($($arg),*) }
                }
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Kind::Avx512 => {
                    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                    fn run($($arg: $ty),*) $(-> $ret)? {
                        $generic($crate::simd::Avx512::new(), $($arg),*)
                    }
                    // SAFETY: an `Isa` of this kind exists only where the processor has it.
                    unsafe { run($($arg),*) }
                }
                #[cfg(target_arch = "aarch64")]
                $crate::simd::Kind::Neon => $generic($crate::simd::Neon::new(), $($arg),*),
            }
        }
    };
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $generic:ident;) => {
        $(#[$meta])*
        $vis unsafe fn $name(isa: $crate::simd::Isa, $($arg: $ty),*) $(-> $ret)? {
            match isa.kind() {
                // SAFETY: the caller keeps the contract, which is the generic's own.
                $crate::simd::Kind::Portable => unsafe { $generic($crate::simd::Portable, $($arg),*) },
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Kind::Avx2Fma => {
                    #[target_feature(enable = "avx2,fma,f16c")]
                    unsafe fn run($($arg: $ty),*) $(-> $ret)? {
                        // SAFETY: the caller keeps the contract, which is the generic's own.
                        unsafe { $generic($crate::simd::Avx2Fma::new(), $($arg),*) }
                    }
                    // SAFETY: an `Isa` of this kind exists only where the processor has it.
                    unsafe { run($($arg),*) }
                }
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Kind::Avx512 => {
                    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                    unsafe fn run($($arg: $ty),*) $(-> $ret)? {
                        // SAFETY: the caller keeps the contract, which is the generic's own.
                        unsafe { $generic($crate::simd::Avx512::new(), $($arg),*) }
                    }
                    // SAFETY: an `Isa` of this kind exists only where the processor has it.
                    unsafe { run($($arg),*) }
                }
                #[cfg(target_arch = "aarch64")]
                // SAFETY: the caller keeps the contract, which is the generic's own.
                $crate::simd::Kind::Neon => unsafe { $generic($crate::simd::Neon::new(), $($arg),*) },
            }
        }
    };
}
pub use simd_kernel;

#[cfg(test)]
mod tests;
