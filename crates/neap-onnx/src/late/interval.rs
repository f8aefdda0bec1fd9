//! What one number can be at least and at most, through arithmetic.
//!
//! Ends are f64: what is beyond 2^53 gives no size, and is taken for open. Floats are rounded as the operator rounds them,
//! which keeps their order, so an end is the end of what is computed, too.

use super::Symbol;
use neap_ir::DType;
use neap_ir::op::{Activation, Binary, Reduce, Unary};

/// Integers up to this are exact.
const EXACT: f64 = (1u64 << 53) as f64;
/// Functions are computed by series: an end of theirs is moved out by this share of it.
const SLACK: f64 = 1e-5;

/// One element. Open ends are infinite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Interval {
    pub low: f64,
    pub high: f64,
    /// It is the size of this late axis, whatever that is.
    pub symbol: Option<Symbol>,
}

impl Interval {
    pub const OPEN: Interval = Interval::new(f64::NEG_INFINITY, f64::INFINITY);

    pub const fn new(low: f64, high: f64) -> Interval {
        Interval {
            low,
            high,
            symbol: None,
        }
    }

    pub fn exact(value: f64) -> Interval {
        Interval::new(value, value)
    }

    /// Any number of a type.
    pub fn of_type(dtype: DType) -> Interval {
        match dtype {
            DType::Bool => Interval::new(0.0, 1.0),
            DType::U8 => Interval::new(0.0, u8::MAX.into()),
            DType::I8 => Interval::new(i8::MIN.into(), i8::MAX.into()),
            DType::U16 => Interval::new(0.0, u16::MAX.into()),
            DType::I16 => Interval::new(i16::MIN.into(), i16::MAX.into()),
            DType::U32 => Interval::new(0.0, u32::MAX.into()),
            DType::I32 => Interval::new(i32::MIN.into(), i32::MAX.into()),
            DType::U64 => Interval::new(0.0, f64::INFINITY),
            DType::I64 | DType::F64 | DType::F32 | DType::F16 | DType::BF16 => Interval::OPEN,
        }
    }

    fn is(self, value: f64) -> bool {
        self.low == value && self.high == value
    }

    /// One of both.
    pub fn or(self, other: Interval) -> Interval {
        Interval {
            low: self.low.min(other.low),
            high: self.high.max(other.high),
            symbol: self.symbol.filter(|_| self.symbol == other.symbol),
        }
    }

    /// As a result of this type: rounded; anything, where an integer may have gone round.
    pub fn fit(self, dtype: DType) -> Interval {
        let all = Interval::of_type(dtype);
        match dtype {
            DType::F64 => self,
            DType::F32 | DType::F16 | DType::BF16 => self.by(|x| f64::from(x as f32)),
            DType::I64 | DType::U64 if self.low != self.high => Interval {
                low: if self.low < -EXACT { all.low } else { self.low },
                high: if self.high > EXACT {
                    all.high
                } else {
                    self.high
                },
                ..self
            },
            _ if self.low >= all.low && self.high <= all.high => self,
            _ => all,
        }
    }

    /// Towards zero, as integers of this type.
    pub fn cast(self, from: DType, to: DType) -> Interval {
        let is_whole = !from.is_float() || to.is_float();
        match (to, is_whole) {
            (DType::Bool, _) if self.low > 0.0 || self.high < 0.0 => Interval::exact(1.0),
            (DType::Bool, _) if self.is(0.0) => Interval::exact(0.0),
            (DType::Bool, _) => Interval::of_type(DType::Bool),
            (_, true) => self.fit(to),
            (_, false) => Interval::new(self.low.trunc(), self.high.trunc()).fit(to),
        }
    }

    pub fn clip(self, low: Option<f64>, high: Option<f64>) -> Interval {
        let (least, most) = (
            low.unwrap_or(f64::NEG_INFINITY),
            high.unwrap_or(f64::INFINITY),
        );
        match self.low >= least && self.high <= most {
            true => self,
            // As operators do: first up, then down.
            false => Interval::new(
                self.low.max(least).min(most),
                self.high.max(least).min(most),
            ),
        }
    }

    /// Both ends by a function that keeps their order.
    fn by(self, f: impl Fn(f64) -> f64) -> Interval {
        Interval::new(f(self.low), f(self.high))
    }

    fn loosely(self) -> Interval {
        Interval::new(
            self.low - SLACK * self.low.abs(),
            self.high + SLACK * self.high.abs(),
        )
    }

    pub fn unary(self, op: &Unary) -> Interval {
        let unit = Interval::new(-1.0, 1.0);
        match op {
            Unary::Identity => self,
            Unary::Abs if self.low >= 0.0 => self,
            Unary::Abs => Interval::new(
                if self.high < 0.0 { -self.high } else { 0.0 },
                self.high.max(-self.low),
            ),
            Unary::Neg => Interval::new(-self.high, -self.low),
            Unary::Floor => self.by(f64::floor),
            Unary::Ceil => self.by(f64::ceil),
            Unary::Round => self.by(f64::round_ties_even),
            Unary::Sign => self.by(|x| if x == 0.0 { 0.0 } else { x.signum() }),
            Unary::Not => Interval::new(1.0 - self.high, 1.0 - self.low),
            Unary::Sqrt if self.low >= 0.0 => self.by(f64::sqrt).loosely(),
            Unary::Reciprocal if self.low > 0.0 => {
                Interval::new(1.0 / self.high, 1.0 / self.low).loosely()
            }
            Unary::Exp => self.by(f64::exp).loosely(),
            Unary::Log if self.low > 0.0 => self.by(f64::ln).loosely(),
            Unary::Softplus => self.by(|x| x.max(0.0) + (-x.abs()).exp().ln_1p()).loosely(),
            Unary::Sin | Unary::Cos | Unary::Erf | Unary::Tanh | Unary::Softsign => unit,
            Unary::Activation(activation) => self.activation(*activation),
            _ => Interval::OPEN,
        }
    }

    fn activation(self, activation: Activation) -> Interval {
        match activation {
            Activation::None => self,
            Activation::Relu => self.clip(Some(0.0), None),
            Activation::Clip { low, high } => self.clip(Some(low.into()), Some(high.into())),
            Activation::LeakyRelu { alpha } if alpha >= 0.0 => {
                self.by(|x| if x < 0.0 { x * f64::from(alpha) } else { x })
            }
            Activation::Sigmoid | Activation::HardSigmoid { .. } => Interval::new(0.0, 1.0),
            Activation::Tanh => Interval::new(-1.0, 1.0),
            Activation::HardSwish | Activation::Silu | Activation::Gelu | Activation::GeluTanh => {
                Interval::new(-1.0, self.high.max(0.0))
            }
            _ => Interval::OPEN,
        }
    }

    /// The ends of a function that is monotone in each operand.
    fn corners(self, other: Interval, f: impl Fn(f64, f64) -> f64) -> Interval {
        let ends = |i: Interval| [i.low, i.high];
        let mut found = Interval::new(f64::INFINITY, f64::NEG_INFINITY);
        for a in ends(self) {
            for b in ends(other) {
                // What is neither is of two open ends, between the other corners.
                let value = f(a, b);
                found.low = found.low.min(value);
                found.high = found.high.max(value);
            }
        }
        found
    }

    /// `self` and `other` of this type.
    pub fn binary(self, op: Binary, other: Interval, dtype: DType) -> Interval {
        let (a, b) = (self, other);
        let whole = f64::from(u8::from(!dtype.is_float()));
        let are_sizes = a.low >= 0.0 && b.low >= 0.0;
        let truth = |always: bool, never: bool| {
            Interval::new(f64::from(u8::from(always)), f64::from(u8::from(!never)))
        };
        match op {
            Binary::Add | Binary::Sub if b.is(0.0) => a,
            Binary::Add if a.is(0.0) => b,
            Binary::Mul | Binary::Div if b.is(1.0) => a,
            Binary::Mul if a.is(1.0) => b,
            Binary::Add => Interval::new(a.low + b.low, a.high + b.high),
            Binary::Sub => Interval::new(a.low - b.high, a.high - b.low),
            Binary::Mul => a.corners(b, |a, b| if a == 0.0 || b == 0.0 { 0.0 } else { a * b }),
            Binary::Div => a.divided(b, dtype),
            Binary::Pow if are_sizes => a.corners(b, f64::powf).loosely_unless(dtype),
            // The result has the divisor's sign.
            Binary::Mod { fmod: false } if b.low > 0.0 => {
                let most = b.high - whole;
                Interval::new(0.0, if a.low >= 0.0 { most.min(a.high) } else { most })
            }
            Binary::Mod { fmod: false } if b.high < 0.0 => Interval::new(b.low + whole, 0.0),
            Binary::Mod { fmod: true } => {
                let most = b.high.max(-b.low) - whole;
                let high = if a.high > 0.0 { most.min(a.high) } else { 0.0 };
                let low = if a.low < 0.0 { (-most).max(a.low) } else { 0.0 };
                Interval::new(low, high)
            }
            Binary::Min => Interval::new(a.low.min(b.low), a.high.min(b.high)),
            Binary::Max => Interval::new(a.low.max(b.low), a.high.max(b.high)),
            Binary::Equal => truth(
                a.low == a.high && b.is(a.low),
                a.high < b.low || b.high < a.low,
            ),
            Binary::Less => truth(a.high < b.low, a.low >= b.high),
            Binary::LessOrEqual => truth(a.high <= b.low, a.low > b.high),
            Binary::Greater => truth(a.low > b.high, a.high <= b.low),
            Binary::GreaterOrEqual => truth(a.low >= b.high, a.high < b.low),
            Binary::And => Interval::new(a.low.min(b.low), a.high.min(b.high)),
            Binary::Or => Interval::new(a.low.max(b.low), a.high.max(b.high)),
            Binary::BitAnd if are_sizes => Interval::new(0.0, a.high.min(b.high)),
            Binary::BitAnd if a.low >= 0.0 => Interval::new(0.0, a.high),
            Binary::BitAnd if b.low >= 0.0 => Interval::new(0.0, b.high),
            Binary::BitOr | Binary::BitXor if are_sizes => {
                let bits = (a.high.max(b.high) + 1.0).log2().ceil();
                Interval::new(0.0, bits.exp2() - 1.0)
            }
            Binary::ShiftLeft if are_sizes => a.corners(b, |a, b| a * b.exp2()),
            Binary::ShiftRight if are_sizes => Interval::new(0.0, a.high),
            _ => Interval::OPEN,
        }
    }

    fn divided(self, by: Interval, dtype: DType) -> Interval {
        let is_whole = !dtype.is_float();
        // Nothing is divided by an integer 0.
        let by = match is_whole && by.low == 0.0 {
            true => Interval::new(1.0, by.high.max(1.0)),
            false => by,
        };
        if by.low <= 0.0 && by.high >= 0.0 {
            return Interval::OPEN;
        }
        let quotient = |a: f64, b: f64| match is_whole {
            true => (a / b).trunc(),
            false => a / b,
        };
        self.corners(by, quotient)
    }

    fn loosely_unless(self, dtype: DType) -> Interval {
        match dtype.is_float() {
            true => self.loosely(),
            false => self,
        }
    }

    /// What a reduction of up to `most` elements gives; `is_late` where there may be fewer.
    pub fn reduced(self, kind: Reduce, most: f64, is_late: bool, dtype: DType) -> Interval {
        let sum = |each: Interval| {
            let times = |end: f64| {
                if end == 0.0 || most == 0.0 {
                    0.0
                } else {
                    end * most
                }
            };
            let (mut low, mut high) = (times(each.low), times(each.high));
            if is_late {
                (low, high) = (low.min(0.0), high.max(0.0));
            }
            // Sums of whole floats are exact as long as they are small; others have one rounding more for each element.
            let is_small = |end: f64| end.fract() == 0.0 && end * most < f64::from(1u32 << 24);
            let is_exact = is_small(each.low.abs()) && is_small(each.high.abs());
            match is_exact || !dtype.is_float() {
                true => Interval::new(low, high),
                false => {
                    let slack = SLACK * (1.0 + most * 1e-2);
                    Interval::new(low - slack * low.abs(), high + slack * high.abs())
                }
            }
        };
        let whole = self.unary(&Unary::Abs);
        match kind {
            Reduce::Sum => sum(self),
            Reduce::L1 => sum(whole),
            Reduce::SumSquare => sum(Interval::new(
                whole.low * whole.low,
                whole.high * whole.high,
            )),
            Reduce::L2 => Interval::new(0.0, whole.high * most.sqrt()).loosely(),
            // Of no elements: the least there is, or the most.
            Reduce::Max if is_late => Interval::new(f64::NEG_INFINITY, self.high),
            Reduce::Min if is_late => Interval::new(self.low, f64::INFINITY),
            Reduce::Max | Reduce::Min => self,
            Reduce::Mean => self.loosely(),
            Reduce::Prod if self.low >= 0.0 => {
                Interval::new(0.0, self.high.max(1.0).powf(most)).loosely()
            }
            _ => Interval::OPEN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of all pairs of small integers lie within what their intervals say.
    #[test]
    fn what_is_computed_lies_between_the_ends() {
        let ops = [
            (
                Binary::Add,
                (|a, b| Some(a + b)) as fn(i64, i64) -> Option<i64>,
            ),
            (Binary::Sub, |a, b| Some(a - b)),
            (Binary::Mul, |a, b| Some(a * b)),
            (Binary::Div, |a, b| a.checked_div(b)),
            (Binary::Mod { fmod: true }, |a, b| a.checked_rem(b)),
            (Binary::Mod { fmod: false }, |a, b| {
                let rest = a.checked_rem(b)?;
                Some(if rest != 0 && (rest < 0) != (b < 0) {
                    rest + b
                } else {
                    rest
                })
            }),
            (Binary::Min, |a, b| Some(a.min(b))),
            (Binary::Max, |a, b| Some(a.max(b))),
            (Binary::Equal, |a, b| Some((a == b).into())),
            (Binary::Less, |a, b| Some((a < b).into())),
            (Binary::GreaterOrEqual, |a, b| Some((a >= b).into())),
            (Binary::BitAnd, |a, b| Some(a & b)),
            (Binary::BitOr, |a, b| Some(a | b)),
            (Binary::BitXor, |a, b| Some(a ^ b)),
        ];
        let spans = || (-4..5i64).flat_map(|low| (low..5i64).map(move |high| (low, high)));
        for (op, compute) in ops {
            for (a_low, a_high) in spans() {
                for (b_low, b_high) in spans() {
                    let of = |low: i64, high: i64| Interval::new(low as f64, high as f64);
                    let given = of(a_low, a_high).binary(op, of(b_low, b_high), DType::I64);
                    for (a, b) in
                        (a_low..=a_high).flat_map(|a| (b_low..=b_high).map(move |b| (a, b)))
                    {
                        let Some(value) = compute(a, b) else { continue };
                        let value = value as f64;
                        let is_inside = given.low <= value && value <= given.high;
                        assert!(is_inside, "{op:?} {a} {b}: {value} of {given:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn open_ends_stay_open_and_the_others_count() {
        let sizes = Interval::new(0.0, f64::INFINITY);
        let five = Interval::exact(5.0);
        let min = Interval::OPEN.binary(Binary::Min, five, DType::I64);
        assert_eq!((min.low, min.high), (f64::NEG_INFINITY, 5.0));
        let rest = sizes.binary(Binary::Mod { fmod: false }, five, DType::I64);
        assert_eq!((rest.low, rest.high), (0.0, 4.0));
        assert_eq!(
            sizes.binary(Binary::Mul, five, DType::I64).high,
            f64::INFINITY
        );
        assert_eq!(
            sizes.binary(Binary::Sub, sizes, DType::I64).low,
            f64::NEG_INFINITY
        );
        let truths = Interval::of_type(DType::Bool).cast(DType::Bool, DType::F32);
        assert_eq!(
            truths.reduced(Reduce::Sum, 16.0, false, DType::F32),
            Interval::new(0.0, 16.0)
        );
        assert_eq!(
            Interval::new(0.0, 9.7).cast(DType::F32, DType::I64).high,
            9.0
        );
        // An integer that may go round can be anything.
        let large = Interval::new(0.0, 3e9);
        assert_eq!(large.fit(DType::I32), Interval::of_type(DType::I32));
        assert_eq!(large.fit(DType::I64), large);
    }
}
