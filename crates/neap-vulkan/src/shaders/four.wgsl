// Four columns of a result.

fn finish(row: u32, column: u32, sum: vec4<f32>) {
    let n = params.shape.n;
    let at = row * n + column;
    var result = sum;
    for (var i = 0u; i < 4u; i++) {
        if column + i < n {
            if params.call.residual == 1u {
                result[i] += r[params.call.r_at + at + i];
            } else if params.call.residual == 2u {
                result[i] += y[params.call.y_at + at + i];
            }
        }
    }
    result = activate(result);
    for (var i = 0u; i < 4u; i++) {
        if column + i < n {
            y[params.call.y_at + at + i] = result[i];
        }
    }
}

