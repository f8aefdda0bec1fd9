//! A result that lies where an operand does has the bits of one that lies elsewhere.

use neap_ir::{Gradient, Layout, Literal, Op, TensorType, infer};
use neap_kernels::parallel::Serial;
use neap_kernels::simd::Isa;
use neap_ops::{
    Context, OperandForm, TensorMut, TensorRef, execute, may_overwrite, workspace_bytes,
};

fn noise(shape: &[usize], seed: usize) -> Literal {
    let n = shape.iter().product();
    let number = |i: usize| ((i * 7919 + seed * 104_729) % 1009) as f32 * 0.002 - 0.9;
    let data: Vec<f32> = (0..n).map(number).collect();
    Literal::from_f32(shape, &data)
}

/// All results, the first of them in the memory of an operand where one is named.
fn results(op: &Op, inputs: &[Literal], over: Option<usize>) -> Vec<Vec<u8>> {
    let types: Vec<TensorType> = inputs.iter().map(|l| l.ty()).collect();
    let some: Vec<Option<TensorType>> = types.iter().cloned().map(Some).collect();
    let outputs = infer::output_types(op, &some, 3).expect("operands fit");
    let form = |ty| Some((ty, Layout::Plain));
    let ins: Vec<OperandForm> = types.iter().map(form).collect();
    let outs: Vec<OperandForm> = outputs.iter().map(form).collect();
    assert!(over.is_none_or(|i| may_overwrite(op, &ins, &outs).contains(&i)));
    let isa = Isa::detect();
    let mut workspace = vec![0u8; workspace_bytes(op, &ins, &outs, 1, isa)];
    // Of 8 bytes each, so that any element is aligned.
    let words = |bytes: usize| vec![0u64; bytes.div_ceil(8)];
    let mut memory: Vec<Vec<u64>> = inputs.iter().map(|l| words(l.len_bytes())).collect();
    for (to, from) in memory.iter_mut().zip(inputs) {
        let to: *mut u8 = to.as_mut_ptr().cast();
        // SAFETY: there are as many bytes.
        unsafe { to.copy_from_nonoverlapping(from.bytes().as_ptr(), from.len_bytes()) };
    }
    let mut own: Vec<Vec<u64>> = outputs.iter().map(|t| words(t.len_bytes())).collect();
    let at: Vec<*mut u8> = memory.iter_mut().map(|m| m.as_mut_ptr().cast()).collect();
    let mut to: Vec<*mut u8> = own.iter_mut().map(|m| m.as_mut_ptr().cast()).collect();
    if let Some(input) = over {
        to[0] = at[input];
    }
    // SAFETY: memory is large enough and lives on; the first result lies in that of an operand that it may take.
    let refs: Vec<Option<TensorRef>> = (types.iter().zip(&at))
        .map(|(ty, &at)| Some(unsafe { TensorRef::new(ty, Layout::Plain, at) }))
        .collect();
    // SAFETY: as above.
    let muts: Vec<Option<TensorMut>> = (outputs.iter().zip(&to))
        .map(|(ty, &to)| Some(unsafe { TensorMut::new(ty, Layout::Plain, to) }))
        .collect();
    let mut ctx = Context {
        par: &Serial,
        isa,
        workspace: &mut workspace,
    };
    execute(op, &refs, None, &muts, &mut ctx).expect("it runs");
    let bytes = |(ty, &to): (&TensorType, &*mut u8)| {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(to, ty.len_bytes()) }.to_vec()
    };
    outputs.iter().zip(&to).map(bytes).collect()
}

#[test]
fn normalisation_by_the_batch() {
    for shape in [&[2, 3, 5, 7][..], &[1, 1, 1, 9], &[4, 16], &[3, 2, 33]] {
        let channels = [shape[1]];
        let of_channel = |seed| noise(&channels, seed);
        let spread = Literal::from_f32(&channels, &vec![0.5; shape[1]]);
        let forward = Op::BatchNormTraining { epsilon: 1e-5 };
        let given = [noise(shape, 1), of_channel(2), of_channel(3)];
        let expected = results(&forward, &given, None);
        assert!(results(&forward, &given, Some(0)) == expected, "{shape:?}");

        let backward = Op::Gradient(Gradient::BatchNorm { epsilon: 1e-5 });
        let given = [
            noise(shape, 4),
            of_channel(5),
            of_channel(6),
            spread,
            noise(shape, 7),
        ];
        let expected = results(&backward, &given, None);
        assert!(expected[0].iter().any(|b| *b != 0));
        for over in [0, 4] {
            let found = results(&backward, &given, Some(over));
            assert!(found == expected, "{shape:?} over operand {over}");
        }
    }
}
