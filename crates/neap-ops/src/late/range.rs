//! Range: as many numbers as there are from a start to a limit.

use super::Call;
use crate::OpError;
use crate::scalar::{Scalar, with_any};
use neap_ir::{DType, TensorType};

pub(super) fn range(call: &mut Call) -> Result<(), OpError> {
    let inputs = [0, 1, 2].map(|i| call.args.input(i));
    let [Ok(start), Ok(limit), Ok(delta)] = inputs else {
        return call.args.fail("takes a start, a limit and a step");
    };
    let dtype = start.dtype();
    let one = |t: &crate::TensorRef| t.elements() == 1 && t.dtype() == dtype;
    call.args.require(
        one(&start) && one(&limit) && one(&delta) && dtype != DType::Bool,
        "takes three numbers of one type",
    )?;
    with_any!(dtype, T => {
        // SAFETY: each has one element of this type.
        let [start, limit, delta] = [start, limit, delta]
            .map(|t| unsafe { *t.as_ptr().cast::<T>() });
        let [from, to, step] = [start, limit, delta].map(Scalar::to_f64);
        if step == 0.0 || !(from.is_finite() && to.is_finite() && step.is_finite()) {
            return Err(OpError::data(
                call.args.op,
                "its step is zero or a limit is not finite",
            ));
        }
        let count = ((to - from) / step).ceil().max(0.0) as usize;
        let Some(place) = call.admit(0, &TensorType::new(dtype, &[count]))? else {
            return Ok(());
        };
        let place = place.as_ptr().cast::<T>();
        for i in 0..count {
            let value = if T::FLOAT {
                T::from_f64(from + i as f64 * step)
            } else {
                T::from_i64(start.to_i64().wrapping_add((i as i64).wrapping_mul(delta.to_i64())))
            };
            // SAFETY: the place holds `count` elements.
            unsafe { place.add(i).write(value) };
        }
        Ok(())
    })
}
