//! Element types as Rust sees them, and choosing one at run time.

use half::{bf16, f16};

/// One byte holding 0 or 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
#[repr(transparent)]
pub(crate) struct Bool(pub u8);

impl Bool {
    pub fn of(value: bool) -> Bool {
        Bool(u8::from(value))
    }
}

/// Any element; conversions saturate from floating point (NaN to 0) and wrap between integers.
pub(crate) trait Scalar: Copy + PartialEq + PartialOrd + Send + Sync + 'static {
    const FLOAT: bool;
    fn to_f64(self) -> f64;
    /// Integers only: the value modulo 2^64.
    fn to_i64(self) -> i64;
    /// Integers only: the value.
    fn to_i128(self) -> i128;
    fn from_f64(x: f64) -> Self;
    fn from_i64(x: i64) -> Self;

    /// ONNX's Cast.
    fn convert<D: Scalar>(self) -> D {
        if Self::FLOAT {
            D::from_f64(self.to_f64())
        } else if D::FLOAT && self.to_f64() >= i64::MAX as f64 {
            // Large unsigned values, which `to_i64` would wrap.
            D::from_f64(self.to_f64())
        } else {
            D::from_i64(self.to_i64())
        }
    }
}

/// Numbers: wrapping integer arithmetic, IEEE floating point (16-bit types through f32).
pub(crate) trait Num: Scalar {
    const ZERO: Self;
    const ONE: Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// Integers truncate; dividing one by 0 gives 0 (callers refuse such data beforehand).
    fn div(self, other: Self) -> Self;
    /// Remainder with the dividend's sign; 0 for an integer modulo 0.
    fn rem_trunc(self, other: Self) -> Self;
    /// Remainder with the divisor's sign.
    fn rem_floor(self, other: Self) -> Self;
    fn abs(self) -> Self;
    fn neg(self) -> Self;
    /// NaN where either is.
    fn min_nan(self, other: Self) -> Self;
    /// NaN where either is.
    fn max_nan(self, other: Self) -> Self;
    fn lowest() -> Self;
    fn highest() -> Self;
    fn is_nan(self) -> bool;
    fn pow_int(self, exponent: u64) -> Self;
}

/// Integers.
pub(crate) trait Int: Num {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn not(self) -> Self;
    /// 0 when everything is shifted out.
    fn shl(self, other: Self) -> Self;
    fn shr(self, other: Self) -> Self;
}

/// Floating point; computed in f64 where no vectorised kernel takes it.
pub(crate) trait Float: Num {}

impl Scalar for Bool {
    const FLOAT: bool = false;
    fn to_f64(self) -> f64 {
        f64::from(self.0)
    }
    fn to_i64(self) -> i64 {
        i64::from(self.0)
    }
    fn to_i128(self) -> i128 {
        i128::from(self.0)
    }
    fn from_f64(x: f64) -> Bool {
        Bool::of(x != 0.0)
    }
    fn from_i64(x: i64) -> Bool {
        Bool::of(x != 0)
    }
}

macro_rules! integers {
    ($($t:ident $signed:expr, $abs:expr, $neg:expr;)*) => {$(
        impl Scalar for $t {
            const FLOAT: bool = false;
            fn to_f64(self) -> f64 { self as f64 }
            fn to_i64(self) -> i64 { self as i64 }
            fn to_i128(self) -> i128 { self as i128 }
            fn from_f64(x: f64) -> $t { x as $t }
            fn from_i64(x: i64) -> $t { x as $t }
        }
        impl Num for $t {
            const ZERO: $t = 0;
            const ONE: $t = 1;
            fn add(self, other: $t) -> $t { self.wrapping_add(other) }
            fn sub(self, other: $t) -> $t { self.wrapping_sub(other) }
            fn mul(self, other: $t) -> $t { self.wrapping_mul(other) }
            fn div(self, other: $t) -> $t {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }
            fn rem_trunc(self, other: $t) -> $t {
                if other == 0 { 0 } else { self.wrapping_rem(other) }
            }
            #[allow(unused_comparisons)]
            fn rem_floor(self, other: $t) -> $t {
                let r = self.rem_trunc(other);
                if r != 0 && (r < 0) != (other < 0) { r.wrapping_add(other) } else { r }
            }
            fn abs(self) -> $t { let f: fn($t) -> $t = $abs; f(self) }
            fn neg(self) -> $t { let f: fn($t) -> $t = $neg; f(self) }
            fn min_nan(self, other: $t) -> $t { self.min(other) }
            fn max_nan(self, other: $t) -> $t { self.max(other) }
            fn lowest() -> $t { $t::MIN }
            fn highest() -> $t { $t::MAX }
            fn is_nan(self) -> bool { false }
            fn pow_int(self, exponent: u64) -> $t { wrapping_power(self, exponent) }
        }
        impl Int for $t {
            fn and(self, other: $t) -> $t { self & other }
            fn or(self, other: $t) -> $t { self | other }
            fn xor(self, other: $t) -> $t { self ^ other }
            fn not(self) -> $t { !self }
            fn shl(self, other: $t) -> $t {
                u32::try_from(other).ok().and_then(|n| self.checked_shl(n)).unwrap_or(0)
            }
            fn shr(self, other: $t) -> $t {
                u32::try_from(other).ok().and_then(|n| self.checked_shr(n)).unwrap_or(0)
            }
        }
    )*};
}

integers! {
    i8 true, i8::wrapping_abs, i8::wrapping_neg;
    i16 true, i16::wrapping_abs, i16::wrapping_neg;
    i32 true, i32::wrapping_abs, i32::wrapping_neg;
    i64 true, i64::wrapping_abs, i64::wrapping_neg;
    u8 false, |x| x, u8::wrapping_neg;
    u16 false, |x| x, u16::wrapping_neg;
    u32 false, |x| x, u32::wrapping_neg;
    u64 false, |x| x, u64::wrapping_neg;
    i128 true, i128::wrapping_abs, i128::wrapping_neg;
}

fn wrapping_power<T: Num>(base: T, mut exponent: u64) -> T {
    let (mut result, mut square) = (T::ONE, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result.mul(square);
        }
        square = square.mul(square);
        exponent >>= 1;
    }
    result
}

macro_rules! floats {
    ($($t:ident $wide:ident $to:expr, $from:expr, $from64:expr;)*) => {$(
        impl Scalar for $t {
            const FLOAT: bool = true;
            #[inline(always)]
            fn to_f64(self) -> f64 { f64::from(self) }
            fn to_i64(self) -> i64 { f64::from(self) as i64 }
            fn to_i128(self) -> i128 { f64::from(self) as i128 }
            #[inline(always)]
            fn from_f64(x: f64) -> $t { let f: fn(f64) -> $t = $from64; f(x) }
            fn from_i64(x: i64) -> $t { let f: fn($wide) -> $t = $from; f(x as $wide) }
        }
        impl Num for $t {
            const ZERO: $t = $t::ZERO_VALUE;
            const ONE: $t = $t::ONE_VALUE;
            #[inline(always)]
            fn add(self, other: $t) -> $t { lift2::<$t>(self, other, |a, b| a + b) }
            #[inline(always)]
            fn sub(self, other: $t) -> $t { lift2::<$t>(self, other, |a, b| a - b) }
            #[inline(always)]
            fn mul(self, other: $t) -> $t { lift2::<$t>(self, other, |a, b| a * b) }
            #[inline(always)]
            fn div(self, other: $t) -> $t { lift2::<$t>(self, other, |a, b| a / b) }
            fn rem_trunc(self, other: $t) -> $t { lift2::<$t>(self, other, |a, b| a % b) }
            fn rem_floor(self, other: $t) -> $t {
                lift2::<$t>(self, other, |a, b| {
                    let r = a % b;
                    if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
                })
            }
            fn abs(self) -> $t { lift2::<$t>(self, self, |a, _| a.abs()) }
            fn neg(self) -> $t { lift2::<$t>(self, self, |a, _| -a) }
            #[inline(always)]
            fn min_nan(self, other: $t) -> $t {
                if self < other || Num::is_nan(self) { self } else { other }
            }
            #[inline(always)]
            fn max_nan(self, other: $t) -> $t {
                if self > other || Num::is_nan(self) { self } else { other }
            }
            fn lowest() -> $t { $t::NEG_INFINITY }
            fn highest() -> $t { $t::INFINITY }
            #[allow(clippy::eq_op)]
            #[inline(always)]
            fn is_nan(self) -> bool { self != self }
            fn pow_int(self, exponent: u64) -> $t {
                $t::from_f64(self.to_f64().powf(exponent as f64))
            }
        }
        impl Float for $t {}
        impl Lift for $t {
            type Wide = $wide;
            #[inline(always)]
            fn wide(self) -> $wide { let f: fn($t) -> $wide = $to; f(self) }
            #[inline(always)]
            fn narrow(x: $wide) -> $t { let f: fn($wide) -> $t = $from; f(x) }
        }
    )*};
}

trait Lift: Copy {
    type Wide;
    fn wide(self) -> Self::Wide;
    fn narrow(x: Self::Wide) -> Self;
}

#[inline(always)]
fn lift2<T: Lift>(a: T, b: T, f: impl Fn(T::Wide, T::Wide) -> T::Wide) -> T {
    T::narrow(f(a.wide(), b.wide()))
}

/// 0 and 1 under one name for primitive and 16-bit floats.
trait Units {
    const ZERO_VALUE: Self;
    const ONE_VALUE: Self;
}

macro_rules! units {
    ($($t:ident $zero:expr, $one:expr;)*) => {$(
        impl Units for $t {
            const ZERO_VALUE: $t = $zero;
            const ONE_VALUE: $t = $one;
        }
    )*};
}

units! {
    f32 0.0, 1.0;
    f64 0.0, 1.0;
    f16 f16::ZERO, f16::ONE;
    bf16 bf16::ZERO, bf16::ONE;
}

floats! {
    f32 f32 |x| x, |x| x, |x| x as f32;
    f64 f64 |x| x, |x| x, |x| x;
    f16 f32 f16::to_f32, f16::from_f32, f16::from_f64;
    bf16 f32 bf16::to_f32, bf16::from_f32, bf16::from_f64;
}

/// Runs a body with `T` the type of a dtype, for each of those that are listed.
macro_rules! with_listed {
    ($dtype:expr, $T:ident => $body:expr; $($name:ident $type:ty),+; $($other:pat => $instead:expr)?) => {
        match $dtype {
            $(neap_ir::DType::$name => {
                type $T = $type;
                $body
            })+
            $($other => $instead,)?
        }
    };
}

/// Runs a body that gives a `Result<_, OpError>` with `T` the type of any dtype.
macro_rules! with_any {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::scalar::with_listed!($dtype, $T => $body;
            F32 f32, F64 f64, F16 half::f16, BF16 half::bf16,
            I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64,
            Bool $crate::scalar::Bool;)
    };
}

/// The same for numbers; booleans give an error that names the operator.
macro_rules! with_numeric {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        $crate::scalar::with_listed!($dtype, $T => $body;
            F32 f32, F64 f64, F16 half::f16, BF16 half::bf16,
            I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64;
            neap_ir::DType::Bool => Err($crate::OpError::unsupported($op, "for bool")))
    };
}

/// The same for integers.
macro_rules! with_int {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        $crate::scalar::with_listed!($dtype, $T => $body;
            I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64;
            other => Err($crate::OpError::unsupported($op, format!("for {other}"))))
    };
}

/// The same for floating point.
macro_rules! with_float {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        $crate::scalar::with_listed!($dtype, $T => $body;
            F32 f32, F64 f64, F16 half::f16, BF16 half::bf16;
            other => Err($crate::OpError::unsupported($op, format!("for {other}"))))
    };
}

/// Runs a body with `T` an unsigned integer as wide as an element: for moving data.
macro_rules! with_width {
    ($bytes:expr, $T:ident => $body:expr) => {
        match $bytes {
            1 => {
                type $T = u8;
                $body
            }
            2 => {
                type $T = u16;
                $body
            }
            4 => {
                type $T = u32;
                $body
            }
            _ => {
                type $T = u64;
                $body
            }
        }
    };
}

pub(crate) use {with_any, with_float, with_int, with_listed, with_numeric, with_width};
