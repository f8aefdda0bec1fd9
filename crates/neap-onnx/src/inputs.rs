//! Shapes of the model's inputs: declared, given by the user, or learned from a named dimension.

use crate::OpenOptions;
use crate::error::{OnnxError, OpenDim, shown};
use crate::need::show_sizes;
use crate::proto::{Dim, ValueInfo, ValueType};
use crate::tensor;
use neap_ir::{DType, Literal, TensorType};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A model's inputs with their symbolic dimensions.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Inputs(Vec<ValueInfo>);

impl Inputs {
    pub(crate) fn new(inputs: Vec<&ValueInfo>) -> Inputs {
        Inputs(inputs.into_iter().cloned().collect())
    }

    /// Every input's shape under these options, by name: what the model that is bound with them will have.
    ///
    /// # Errors
    /// Those of [`crate::open`] that concern inputs.
    pub fn shapes(&self, options: &OpenOptions) -> Result<BTreeMap<String, Vec<usize>>, OnnxError> {
        let inputs: Vec<&ValueInfo> = self.0.iter().collect();
        let types = bind(&inputs, options)?;
        let shapes = inputs.iter().zip(types);
        Ok(shapes
            .map(|(input, ty)| (input.name.clone(), ty.shape))
            .collect())
    }

    /// Those of these shapes that say how the one element of a declared scalar is given.
    pub fn scalars_given(
        &self,
        shapes: &BTreeMap<String, Vec<usize>>,
    ) -> BTreeMap<String, Vec<usize>> {
        let is_scalar = |input: &&ValueInfo| {
            let is_empty = |dims: &Vec<Dim>| dims.is_empty();
            matches!(&input.ty, ValueType::Tensor { shape, .. } if shape.as_ref().is_some_and(is_empty))
        };
        let given = self.0.iter().filter(is_scalar).filter_map(|input| {
            let shape = shapes.get(&input.name)?;
            is_one_for_scalar(0, shape).then(|| (input.name.clone(), shape.clone()))
        });
        given.collect()
    }

    pub(crate) fn values(&self) -> &[ValueInfo] {
        &self.0
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|input| input.name.as_str())
    }

    /// Inputs, as messages show them, whose first dimension has its size from [`OpenOptions::unsaid`].
    ///
    /// # Errors
    /// As [`Inputs::shapes`].
    pub fn unsaid_batches(&self, options: &OpenOptions) -> Result<Vec<String>, OnnxError> {
        let inputs: Vec<&ValueInfo> = self.0.iter().collect();
        let said = Said::of(&inputs, options)?;
        let open = inputs
            .into_iter()
            .filter(|input| said.is_unsaid_batch(input, options));
        Ok(open.map(|input| shown(&input.name)).collect())
    }

    /// Shapes for inputs that have none: those given for other inputs, where they fit.
    pub(crate) fn like_others(&self, options: &OpenOptions) -> BTreeMap<String, Vec<usize>> {
        let given = |input: &ValueInfo| given_shape(input, options).ok().flatten();
        let fits = |shape: &[usize], dims: &[Dim]| {
            shape.len() == dims.len()
                && (shape.iter().zip(dims))
                    .all(|(&size, dim)| size_of(dim).is_none_or(|fixed| fixed == size))
        };
        let open = self.0.iter().filter(|input| given(input).is_none());
        let open = open.filter_map(|input| {
            let (_, dims) = tensor_type(input).ok()?;
            let dims = dims.filter(|dims| !dims.iter().all(|dim| size_of(dim).is_some()))?;
            let mut others = self.0.iter().filter_map(given);
            let shape = others.find(|shape| fits(shape, dims))?;
            Some((input.name.clone(), shape.to_vec()))
        });
        open.collect()
    }
}

/// What named dimensions are. `None` for a name that exporters gave to dimensions of several sizes: it says nothing
/// about inputs whose shapes are not given.
type Sizes<'a> = HashMap<&'a str, Option<usize>>;

/// What the options say of dimensions, and what is taken where they say nothing.
struct Said<'a> {
    sizes: Sizes<'a>,
    /// Of first dimensions that have no name, where those of all inputs with a given shape agree, and one is taken at all.
    batch: Option<usize>,
    /// Named dimensions that stand first in an input, and that nothing else says the size of.
    unsaid: HashSet<&'a str>,
}

impl<'a> Said<'a> {
    fn of(inputs: &[&'a ValueInfo], options: &'a OpenOptions) -> Result<Said<'a>, OnnxError> {
        let dims = options.dims.iter();
        let mut sizes: Sizes = dims
            .map(|(name, &size)| (name.as_str(), Some(size)))
            .collect();
        let mut batches = BTreeSet::new();
        // First the inputs whose shapes are given: they say what named dimensions are.
        for &input in inputs {
            let Some(given) = given_shape(input, options)? else {
                continue;
            };
            learn(input, given, &mut sizes)?;
            if let (Some(Dim::Unknown), Some(&size)) = (first_dim(input), given.first()) {
                batches.insert(size);
            }
        }
        let mut unsaid = HashSet::new();
        if let Some(size) = options.unsaid.first {
            for &input in inputs {
                if let Some(Dim::Named(name)) = first_dim(input)
                    && !sizes.contains_key(name.as_str())
                    && !is_repeated(input, name)
                {
                    unsaid.insert(name.as_str());
                }
            }
            sizes.extend(unsaid.iter().map(|&name| (name, Some(size))));
        }
        let only = batches.pop_first().filter(|_| batches.is_empty());
        let only = only.filter(|_| options.unsaid.first.is_some());
        Ok(Said {
            sizes,
            batch: only,
            unsaid,
        })
    }

    fn is_unsaid_batch(&self, input: &ValueInfo, options: &OpenOptions) -> bool {
        let is_given = matches!(given_shape(input, options), Ok(Some(_)));
        let is_open = match first_dim(input) {
            Some(Dim::Named(name)) => self.unsaid.contains(name.as_str()),
            Some(Dim::Fixed(size)) => *size < 0 && self.batch.is_none(),
            Some(Dim::Unknown) => self.batch.is_none(),
            None => false,
        };
        is_open && !is_given && options.unsaid.first.is_some()
    }

    /// Of a dimension of an input that has no shape.
    fn size(&self, axis: usize, dim: &Dim, options: &OpenOptions) -> Option<usize> {
        let known = match dim {
            Dim::Named(name) => self.sizes.get(name.as_str()).copied().flatten(),
            Dim::Fixed(_) | Dim::Unknown => size_of(dim).or_else(|| {
                let batch = self.batch.or(options.unsaid.first);
                batch.filter(|_| axis == 0)
            }),
        };
        known.or(options.unsaid.others)
    }
}

fn first_dim(input: &ValueInfo) -> Option<&Dim> {
    let (_, dims) = tensor_type(input).ok()?;
    dims?.first()
}

/// What says two sizes of one input is no batch.
fn is_repeated(input: &ValueInfo, name: &str) -> bool {
    let dims = tensor_type(input).ok().and_then(|(_, dims)| dims);
    let named = |dim: &&Dim| matches!(dim, Dim::Named(known) if known == name);
    dims.is_some_and(|dims| dims.iter().filter(named).count() > 1)
}

/// As the model itself says it.
fn size_of(dim: &Dim) -> Option<usize> {
    match dim {
        Dim::Fixed(size) => usize::try_from(*size).ok(),
        Dim::Named(_) | Dim::Unknown => None,
    }
}

/// Types of all inputs, in order. Dtypes are as stored (half floats not widened).
pub(crate) fn bind(
    inputs: &[&ValueInfo],
    options: &OpenOptions,
) -> Result<Vec<TensorType>, OnnxError> {
    for name in options.shapes.keys().chain(options.bindings.keys()) {
        if !inputs.iter().any(|i| &i.name == name) {
            let known: Vec<String> = inputs.iter().map(|i| shown(&i.name)).collect();
            return Err(OnnxError::Input {
                input: shown(name),
                reason: format!(
                    "the model has no such input; it has '{}'",
                    known.join("', '")
                ),
            });
        }
    }
    let said = Said::of(inputs, options)?;
    inputs
        .iter()
        .map(|input| resolve(input, given_shape(input, options)?, &said, options))
        .collect()
}

/// The value given for an input, as the graph holds it. `stored` is the model's element type, `dtype` the graph's.
/// Small integers are taken for the 64-bit ones that decide shapes.
pub(crate) fn bound_value(
    input: &str,
    given: &Literal,
    stored: DType,
    dtype: DType,
) -> Result<Literal, OnnxError> {
    if given.dtype() == stored || given.dtype() == dtype {
        return Ok(tensor::converted(given.clone(), dtype));
    }
    let whole = given.dtype() != DType::Bool && dtype == DType::I64;
    let widened = given.to_i64_vec().filter(|_| whole);
    widened
        .filter(|_| given.dtype() != DType::U64)
        .map(|values| Literal::from_i64(given.shape(), &values))
        .ok_or_else(|| OnnxError::Input {
            input: shown(input),
            reason: format!(
                "its bound value is {}, but the model wants {stored}",
                given.dtype()
            ),
        })
}

fn given_shape<'a>(
    input: &ValueInfo,
    options: &'a OpenOptions,
) -> Result<Option<&'a [usize]>, OnnxError> {
    let shape = options.shapes.get(&input.name).map(Vec::as_slice);
    let bound = options.bindings.get(&input.name).map(Literal::shape);
    if let (Some(shape), Some(bound)) = (shape, bound)
        && shape != bound
    {
        return Err(OnnxError::Input {
            input: shown(&input.name),
            reason: format!(
                "its bound value has shape {}, but shape {} is given",
                show_sizes(bound),
                show_sizes(shape)
            ),
        });
    }
    Ok(bound.or(shape))
}

fn tensor_type(input: &ValueInfo) -> Result<(DType, Option<&[Dim]>), OnnxError> {
    let bad = |reason: String| OnnxError::Input {
        input: shown(&input.name),
        reason,
    };
    match &input.ty {
        ValueType::Tensor { elem_type, shape } => {
            let dtype = tensor::carrier(*elem_type).map_err(bad)?;
            Ok((dtype, shape.as_deref()))
        }
        ValueType::Other(kind) => Err(bad(format!("it is {kind}, which is not supported"))),
        ValueType::Unknown => Err(bad("it has no type".into())),
    }
}

/// Whether a shape is one of a single element where a scalar is declared. Many programs give those as `[1]`, and
/// onnxruntime takes it: the input then has the axes that it is given.
pub(crate) fn is_one_for_scalar(declared_axes: usize, given: &[usize]) -> bool {
    declared_axes == 0 && given.iter().all(|&size| size == 1)
}

fn learn<'a>(
    input: &'a ValueInfo,
    given: &[usize],
    sizes: &mut Sizes<'a>,
) -> Result<(), OnnxError> {
    let (_, declared) = tensor_type(input)?;
    let Some(declared) = declared else {
        return Ok(());
    };
    let mismatch = || OnnxError::Input {
        input: shown(&input.name),
        reason: format!(
            "shape {} does not fit the model's {}",
            show_sizes(given),
            show_dims(declared)
        ),
    };
    if is_one_for_scalar(declared.len(), given) {
        return Ok(());
    }
    if given.len() != declared.len() {
        return Err(mismatch());
    }
    for (&size, dim) in given.iter().zip(declared) {
        match dim {
            Dim::Fixed(d) if *d >= 0 && *d as usize != size => return Err(mismatch()),
            Dim::Named(name) => {
                let known = sizes.entry(name).or_insert(Some(size));
                if *known != Some(size) {
                    *known = None;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn resolve(
    input: &ValueInfo,
    given: Option<&[usize]>,
    said: &Said,
    options: &OpenOptions,
) -> Result<TensorType, OnnxError> {
    let (dtype, declared) = tensor_type(input)?;
    let shape = match (given, declared) {
        (Some(given), _) => given.to_vec(),
        (None, None) => {
            return Err(OnnxError::DynamicInput {
                input: shown(&input.name),
                open: None,
            });
        }
        (None, Some(dims)) => {
            let sizes = dims.iter().enumerate();
            let shape: Vec<Option<usize>> = sizes
                .map(|(axis, dim)| said.size(axis, dim, options))
                .collect();
            if let Some(axis) = shape.iter().position(Option::is_none) {
                let dim = match &dims[axis] {
                    Dim::Named(name) => shown(name),
                    _ => "?".into(),
                };
                let declared = show_dims(dims);
                return Err(OnnxError::DynamicInput {
                    input: shown(&input.name),
                    open: Some(OpenDim {
                        declared,
                        dim,
                        axis,
                    }),
                });
            }
            shape.into_iter().flatten().collect()
        }
    };
    if shape.len() > tensor::MAX_RANK || tensor::is_huge(&shape) {
        return Err(OnnxError::Input {
            input: shown(&input.name),
            reason: format!("shape {} is impossibly large", show_sizes(&shape)),
        });
    }
    Ok(TensorType { dtype, shape })
}

fn show_dims(dims: &[Dim]) -> String {
    let parts: Vec<String> = dims
        .iter()
        .map(|d| match d {
            Dim::Fixed(d) if *d < 0 => "?".into(),
            Dim::Fixed(d) => d.to_string(),
            Dim::Named(name) => shown(name),
            Dim::Unknown => "?".into(),
        })
        .collect();
    if parts.is_empty() {
        "scalar".into()
    } else {
        parts.join("x")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Unsaid;

    fn input(name: &str, dims: &[Dim]) -> ValueInfo {
        ValueInfo {
            name: name.into(),
            ty: ValueType::Tensor {
                elem_type: 1,
                shape: Some(dims.to_vec()),
            },
        }
    }

    fn named(name: &str) -> Dim {
        Dim::Named(name.into())
    }

    #[test]
    fn a_named_dimension_is_learned_from_any_input() {
        let a = input("a", &[named("batch"), Dim::Fixed(3)]);
        let b = input("b", &[Dim::Fixed(7), named("batch")]);
        let mut options = OpenOptions::default();
        options.shapes.insert("b".into(), vec![7, 5]);
        let types = bind(&[&a, &b], &options).expect("bound");
        assert_eq!(types[0].shape, [5, 3]);
        assert_eq!(types[1].shape, [7, 5]);
    }

    #[test]
    fn one_element_is_given_for_a_scalar_whatever_its_axes() {
        let s = input("s", &[]);
        for shape in [vec![], vec![1], vec![1, 1]] {
            let mut options = OpenOptions::default();
            options.shapes.insert("s".into(), shape.clone());
            assert_eq!(bind(&[&s], &options).expect("bound")[0].shape, shape);
        }
        assert_eq!(
            bind(&[&s], &OpenOptions::default()).expect("bound")[0].shape,
            [0; 0]
        );
        for shape in [vec![2], vec![0], vec![1, 2]] {
            let mut options = OpenOptions::default();
            options.shapes.insert("s".into(), shape);
            let error = bind(&[&s], &options).expect_err("no scalar").to_string();
            assert!(error.contains("does not fit the model's scalar"), "{error}");
        }
    }

    #[test]
    fn a_missing_dimension_is_a_question() {
        let x = input("x", &[named("batch"), Dim::Fixed(3), Dim::Fixed(224)]);
        let error = bind(&[&x], &OpenOptions::default()).expect_err("open");
        assert_eq!(
            error.to_string(),
            "input 'x' (batchx3x224) has dynamic dimension 'batch' (axis 0): give its shape"
        );
        let mut options = OpenOptions::default();
        options.dims.insert("batch".into(), 2);
        assert_eq!(bind(&[&x], &options).expect("bound")[0].shape, [2, 3, 224]);
    }

    fn of_one() -> OpenOptions {
        OpenOptions {
            unsaid: Unsaid {
                first: Some(1),
                others: None,
            },
            ..OpenOptions::default()
        }
    }

    fn shapes(inputs: &Inputs, options: &OpenOptions) -> Vec<Vec<usize>> {
        let shapes = inputs.shapes(options).expect("bound");
        inputs.names().map(|name| shapes[name].clone()).collect()
    }

    #[test]
    fn an_open_first_dimension_is_a_batch_of_one_where_nothing_says_it() {
        let inputs = Inputs(vec![
            input("x", &[named("batch"), Dim::Fixed(3)]),
            input("state", &[Dim::Fixed(2), named("batch")]),
            input("unnamed", &[Dim::Unknown, Dim::Fixed(4)]),
            input("negative", &[Dim::Fixed(-1), Dim::Fixed(4)]),
        ]);
        let mut options = of_one();
        let one = [vec![1, 3], vec![2, 1], vec![1, 4], vec![1, 4]];
        assert_eq!(shapes(&inputs, &options), one);
        let unsaid = inputs.unsaid_batches(&options).expect("bound");
        assert_eq!(unsaid, ["x", "unnamed", "negative"]);
        // One shape says the name everywhere, and what has no name follows what has none.
        options.shapes.insert("state".into(), vec![2, 5]);
        options.shapes.insert("unnamed".into(), vec![6, 4]);
        let said = [vec![5, 3], vec![2, 5], vec![6, 4], vec![6, 4]];
        assert_eq!(shapes(&inputs, &options), said);
        let unsaid = inputs.unsaid_batches(&options).expect("bound");
        assert_eq!(unsaid, [""; 0]);
    }

    #[test]
    fn other_open_dimensions_are_asked_for() {
        for dims in [
            [named("batch"), named("length")],
            [Dim::Unknown, Dim::Unknown],
            // One name of two axes is no batch.
            [named("n"), named("n")],
        ] {
            let x = input("x", &dims);
            let error = bind(&[&x], &of_one()).expect_err("open").to_string();
            assert!(error.contains("dynamic dimension"), "{error}");
        }
    }

    #[test]
    fn a_value_must_have_the_shape_that_is_given_beside_it() {
        let x = input("x", &[named("n")]);
        let mut options = OpenOptions::default();
        options
            .bindings
            .insert("x".into(), Literal::from_f32(&[2], &[1.0, 2.0]));
        assert_eq!(bind(&[&x], &options).expect("bound")[0].shape, [2]);
        options.shapes.insert("x".into(), vec![3]);
        let error = bind(&[&x], &options).expect_err("contradiction");
        assert!(error.to_string().contains("shape 3 is given"), "{error}");
    }

    #[test]
    fn small_integers_are_taken_for_large_ones() {
        let bytes = (-2i32).to_le_bytes();
        let small = Literal::from_bytes(DType::I32, &[1], &bytes).expect("fits");
        let wide = bound_value("n", &small, DType::I64, DType::I64).expect("widened");
        assert_eq!(wide, Literal::from_i64(&[1], &[-2]));
        let error = bound_value("n", &small, DType::F32, DType::F32).expect_err("no float");
        assert!(error.to_string().contains("int32"), "{error}");
        let bits = u64::MAX.to_le_bytes();
        let large = Literal::from_bytes(DType::U64, &[1], &bits).expect("fits");
        assert!(bound_value("n", &large, DType::I64, DType::I64).is_err());
    }

    #[test]
    fn a_name_of_several_sizes_decides_nothing() {
        let inputs = ["a", "b", "c"].map(|name| input(name, &[named("n"), Dim::Fixed(2)]));
        let [a, b, c] = &inputs;
        let mut options = OpenOptions::default();
        options.shapes.insert("a".into(), vec![1, 2]);
        options.shapes.insert("b".into(), vec![5, 2]);
        let types = bind(&[a, b], &options).expect("each has the shape that is given");
        assert_eq!(
            (&types[0].shape[..], &types[1].shape[..]),
            (&[1, 2][..], &[5, 2][..])
        );
        let error = bind(&[a, b, c], &options)
            .expect_err("which of them?")
            .to_string();
        assert!(
            error.contains("input 'c' (nx2) has dynamic dimension 'n'"),
            "{error}"
        );
    }

    #[test]
    fn contradictions_are_errors() {
        let a = input("a", &[named("n")]);
        let b = input("b", &[named("n"), Dim::Fixed(2)]);
        for (shapes, expected) in [
            (
                vec![("a", vec![1]), ("b", vec![1, 3])],
                "shape 1x3 does not fit the model's nx2",
            ),
            (
                vec![("a", vec![1, 1])],
                "shape 1x1 does not fit the model's n",
            ),
            (vec![("c", vec![1])], "no such input"),
            (vec![("a", vec![usize::MAX])], "impossibly large"),
        ] {
            let mut options = OpenOptions::default();
            for (name, shape) in shapes {
                options.shapes.insert(name.into(), shape);
            }
            let error = bind(&[&a, &b], &options)
                .expect_err("contradiction")
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
