// Results of blocked tensors, four channels at a time. Drivers that compute on the processor take minutes to compile curves that are
// unrolled: those are applied in a loop over what is stored.

@group(0) @binding(3) var<storage, read> r: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;

fn finish(at: u32, result: vec4<f32>) {
    var sum = result;
    if MORE {
        if params.call.residual == 1u {
            sum += r[params.call.r_at + at];
        } else if params.call.residual == 2u {
            sum += y[params.call.y_at + at];
        }
    }
    y[params.call.y_at + at] = bound(sum);
}

fn curve(at: u32) {
    y[params.call.y_at + at] = activate(y[params.call.y_at + at]);
}

