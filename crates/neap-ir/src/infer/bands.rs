//! Types of the layers of a chain in row bands.

use super::output_types;
use crate::bands::{Bands, MAX_LAYERS};
use crate::{DType, TensorType};

impl Bands {
    /// Output types of all layers for these inputs; an error says what does not fit.
    ///
    /// # Errors
    /// What does not fit, in words.
    pub fn layer_types(&self, inputs: &[Option<TensorType>]) -> Result<Vec<TensorType>, String> {
        if !(1..=MAX_LAYERS).contains(&self.layers.len()) {
            return Err(format!("has {} layers", self.layers.len()));
        }
        let (&Some(Some(x)), last) = (&inputs.first().map(Option::as_ref), self.layers.len() - 1)
        else {
            return Err("input 0 is missing".into());
        };
        if x.shape.len() != 4 || x.shape.contains(&0) {
            return Err("takes images of rank 4 that are not empty".into());
        }
        let mut formats = self.formats.iter();
        let mut types: Vec<TensorType> = Vec::with_capacity(self.layers.len());
        let mut next_input = 1;
        for (index, layer) in self.layers.iter().enumerate() {
            let mut operands = vec![Some(types.last().unwrap_or(x).clone())];
            if layer.has_weights() {
                let format = formats
                    .next()
                    .filter(|format| format.is_known() && !format.has_blocks());
                let format = format.ok_or("a layer's panels have no format")?;
                let wanted = layer.weight_type(*format).ok_or("sizes overflow")?;
                let fits = inputs
                    .get(next_input)
                    .and_then(Option::as_ref)
                    .is_some_and(|weights| *weights == wanted);
                if !fits {
                    return Err(format!("the weights of layer {index} have another shape"));
                }
                next_input += 1;
            }
            if layer.has_residual() {
                if index != last {
                    return Err("an inner layer has a residual".into());
                }
                operands.push(inputs.get(next_input).cloned().flatten());
                next_input += 1;
            }
            if layer.integers().is_some() != self.is_in_integers() {
                return Err("has layers in integers and others".into());
            }
            if let Some(integers) = layer.integers() {
                if integers.input_steps.is_none() || index != last && !integers.gives_steps {
                    return Err(format!("layer {index} takes or gives no steps"));
                }
                let one = |dtype: DType| Some(TensorType::new(dtype, &[]));
                operands.resize(2, None);
                operands.extend([one(DType::F32), one(DType::U8)]);
            }
            let found = output_types(&layer.op(), &operands, 1).map_err(|e| e.to_string())?;
            types.extend(found);
        }
        if inputs.len() != next_input {
            return Err(format!(
                "has {} inputs where its layers need {next_input}",
                inputs.len()
            ));
        }
        if formats.next().is_some() {
            return Err("has more formats than panels".into());
        }
        let rows = types[last].shape[2];
        if types[last].shape.contains(&0) {
            return Err("gives nothing".into());
        }
        if self.first_rows == 0 || self.first_rows > self.band_rows || self.band_rows > rows {
            return Err(format!(
                "bands of {} and {} rows do not fit an output of {rows}",
                self.first_rows, self.band_rows
            ));
        }
        Ok(types)
    }
}
