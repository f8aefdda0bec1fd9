//! Small ONNX models, written byte by byte.

/// Fields of a protobuf message.
#[derive(Default, Clone)]
pub struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(mut self, field: u32, value: u64) -> Message {
        self.varint(u64::from(field) << 3);
        self.varint(value);
        self
    }

    fn bytes(mut self, field: u32, value: &[u8]) -> Message {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    fn message(self, field: u32, value: &Message) -> Message {
        self.bytes(field, &value.0)
    }
}

/// Numbers of types, of tensors and of attributes.
const GRAPH: u64 = 5;
pub const BOOL: u64 = 9;
pub const FLOAT: u64 = 1;
pub const INT64: u64 = 7;

/// A graph in the making.
#[derive(Default)]
pub struct Model(Message);

impl Model {
    pub fn node(self, op: &str, inputs: &[&str], outputs: &[&str]) -> Model {
        self.node_with(op, inputs, outputs, None)
    }

    /// A node that has this body.
    pub fn around(self, op: &str, inputs: &[&str], outputs: &[&str], body: Model) -> Model {
        let graph = body.0.bytes(2, b"body");
        let attribute = Message::default()
            .bytes(1, b"body")
            .message(6, &graph)
            .number(20, GRAPH);
        self.node_with(op, inputs, outputs, Some(attribute))
    }

    fn node_with(
        mut self,
        op: &str,
        inputs: &[&str],
        outputs: &[&str],
        attribute: Option<Message>,
    ) -> Model {
        let mut node = Message::default();
        for input in inputs {
            node = node.bytes(1, input.as_bytes());
        }
        for output in outputs {
            node = node.bytes(2, output.as_bytes());
        }
        let node = node
            .bytes(3, format!("{op}_node").as_bytes())
            .bytes(4, op.as_bytes());
        let node = match attribute {
            Some(attribute) => node.message(5, &attribute),
            None => node,
        };
        self.0 = self.0.message(1, &node);
        self
    }

    /// An initializer of one integer.
    pub fn integer(self, name: &str, value: i64) -> Model {
        self.whole_numbers(name, &[], &[value])
    }

    /// An initializer of a row of integers.
    pub fn integers(self, name: &str, values: &[i64]) -> Model {
        self.whole_numbers(name, &[values.len() as u64], values)
    }

    fn whole_numbers(mut self, name: &str, dims: &[u64], values: &[i64]) -> Model {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let sized = |tensor: Message, &dim: &u64| tensor.number(1, dim);
        let tensor = dims.iter().fold(Message::default(), sized);
        let tensor = tensor
            .number(2, INT64)
            .bytes(8, name.as_bytes())
            .bytes(9, &data);
        self.0 = self.0.message(5, &tensor);
        self
    }

    /// An initializer of seeded floats around zero.
    pub fn weights(mut self, name: &str, dims: &[u64], seed: u32) -> Model {
        let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
        let data: Vec<u8> = (0..dims.iter().product())
            .flat_map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((state >> 16) as f32 / 65536.0 - 0.5).to_le_bytes()
            })
            .collect();
        let mut tensor = Message::default();
        for &dim in dims {
            tensor = tensor.number(1, dim);
        }
        let tensor = tensor
            .number(2, FLOAT)
            .bytes(8, name.as_bytes())
            .bytes(9, &data);
        self.0 = self.0.message(5, &tensor);
        self
    }

    /// An initializer of these floats.
    pub fn matrix(mut self, name: &str, dims: &[u64], values: &[f32]) -> Model {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let tensor = dims
            .iter()
            .fold(Message::default(), |t, &dim| t.number(1, dim));
        let tensor = tensor
            .number(2, FLOAT)
            .bytes(8, name.as_bytes())
            .bytes(9, &data);
        self.0 = self.0.message(5, &tensor);
        self
    }

    /// An initializer of floats that are a whole file beside the model.
    pub fn external_weights(mut self, name: &str, dims: &[u64], file: &str) -> Model {
        let mut tensor = Message::default();
        for &dim in dims {
            tensor = tensor.number(1, dim);
        }
        let location = Message::default()
            .bytes(1, b"location")
            .bytes(2, file.as_bytes());
        let tensor = tensor
            .number(2, FLOAT)
            .bytes(8, name.as_bytes())
            .message(13, &location)
            .number(14, 1);
        self.0 = self.0.message(5, &tensor);
        self
    }

    /// Dimensions that are no numbers are dynamic.
    pub fn input(mut self, name: &str, dtype: u64, dims: &[&str]) -> Model {
        self.0 = self.0.message(11, &value(name, dtype, dims));
        self
    }

    pub fn output(mut self, name: &str, dtype: u64, dims: &[&str]) -> Model {
        self.0 = self.0.message(12, &value(name, dtype, dims));
        self
    }

    pub fn finish(self) -> Vec<u8> {
        let opset = Message::default().bytes(1, b"").number(2, 17);
        Message::default()
            .number(1, 8)
            .message(7, &self.0.bytes(2, b"test"))
            .message(8, &opset)
            .0
    }
}

fn value(name: &str, dtype: u64, dims: &[&str]) -> Message {
    let mut shape = Message::default();
    for dim in dims {
        let dim = match dim.parse() {
            Ok(number) => Message::default().number(1, number),
            Err(_) => Message::default().bytes(2, dim.as_bytes()),
        };
        shape = shape.message(1, &dim);
    }
    let tensor = Message::default().number(1, dtype).message(2, &shape);
    let ty = Message::default().message(1, &tensor);
    Message::default().bytes(1, name.as_bytes()).message(2, &ty)
}

/// `relu` of one input of the given shape.
pub fn relu(input: &str, dims: &[&str], output: &str) -> Vec<u8> {
    Model::default()
        .node("Relu", &[input], &[output])
        .input(input, FLOAT, dims)
        .output(output, FLOAT, dims)
        .finish()
}

/// A recurrent layer that was unrolled: `passes` times four nodes over weights that all passes share.
pub fn unrolled(passes: usize) -> Vec<u8> {
    let mut model = Model::default();
    let mut state = "x".to_string();
    for pass in 0..passes {
        let [of_state, of_input, sum] = ["s", "i", "a"].map(|name| format!("{name}{pass}"));
        let next = format!("state{pass}");
        model = model
            .node("MatMul", &[&state, "w"], &[&of_state])
            .node("Mul", &["x", &of_state], &[&of_input])
            .node("Add", &[&of_state, &of_input], &[&sum])
            .node("Tanh", &[&sum], &[&next]);
        state = next;
    }
    model
        .weights("w", &[64, 64], 1)
        .input("x", FLOAT, &["1", "64"])
        .output(&state, FLOAT, &["1", "64"])
        .finish()
}

/// The same, to learn pictures of 28 x 28: three nodes for each pass.
pub fn unrolled_classifier(passes: usize) -> Vec<u8> {
    let mut model = Model::default().node("Flatten", &["x"], &["flat"]).node(
        "MatMul",
        &["flat", "first"],
        &["state"],
    );
    let mut state = "state".to_string();
    for pass in 0..passes {
        let [of_state, sum, next] = ["s", "a", "state"].map(|name| format!("{name}{pass}"));
        model = model
            .node("MatMul", &[&state, "w"], &[&of_state])
            .node("Add", &[&of_state, "b"], &[&sum])
            .node("Tanh", &[&sum], &[&next]);
        state = next;
    }
    model
        .node("MatMul", &[&state, "last"], &["y"])
        .weights("first", &[784, 16], 1)
        .weights("w", &[16, 16], 2)
        .weights("b", &[16], 3)
        .weights("last", &[16, 10], 4)
        .input("x", FLOAT, &["n", "1", "28", "28"])
        .output("y", FLOAT, &["n", "10"])
        .finish()
}

/// A loop that goes round more often than anybody waits for.
pub fn endless() -> Vec<u8> {
    let body = Model::default()
        .node("Identity", &["on"], &["still"])
        .node("Tanh", &["y"], &["next"])
        .input("i", INT64, &[])
        .input("on", BOOL, &[])
        .input("y", FLOAT, &["4"])
        .output("still", BOOL, &[])
        .output("next", FLOAT, &["4"]);
    Model::default()
        .integer("passes", 1 << 62)
        .around("Loop", &["passes", "", "x"], &["y"], body)
        .input("x", FLOAT, &["4"])
        .output("y", FLOAT, &["4"])
        .finish()
}

/// Three layers with 12 MiB of weights, which a budget can stream.
pub fn layers() -> Vec<u8> {
    Model::default()
        .node("MatMul", &["x", "w1"], &["a"])
        .node("Relu", &["a"], &["b"])
        .node("MatMul", &["b", "w2"], &["c"])
        .node("Relu", &["c"], &["d"])
        .node("MatMul", &["d", "w3"], &["out/put:0"])
        .weights("w1", &[1024, 1024], 1)
        .weights("w2", &[1024, 1024], 2)
        .weights("w3", &[1024, 1024], 3)
        .input("x", FLOAT, &["4", "1024"])
        .output("out/put:0", FLOAT, &["4", "1024"])
        .finish()
}
