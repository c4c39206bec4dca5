//! The engine's aggregates as DataFusion sees them.

use std::{
    collections::VecDeque,
    hash::{Hash, Hasher},
    sync::Arc,
};

use arrow::{
    array::{Array, ArrayRef, AsArray, BinaryArray},
    datatypes::{DataType, Field, FieldRef},
};
use carousel_engine::{
    SqlError, Type, Value,
    aggregate::{AggregateCall, AggregateFunction, AggregateState},
    array::{arrow_cell_to_value, values_to_array},
    error::Result,
    expr::Expr,
};
use datafusion::{
    common::{Result as DataFusionResult, ScalarValue},
    logical_expr::{
        Accumulator, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, Volatility,
        function::{AccumulatorArgs, StateFieldsArgs},
        utils::AggregateOrderSensitivity,
    },
};

use super::{
    function::{check_wanted, external},
    node::Call,
    scan::Reader,
};

/// How many rows are taken in between two looks at whether somebody waits for them.
const LOOKS: usize = 1024;

#[derive(Debug)]
struct Inner {
    name: String,
    call: Call,
    /// Types of the arguments; of `count(*)` it does not matter.
    arguments: Vec<Type>,
    output: Type,
    reader: Arc<dyn Reader>,
    signature: Signature,
}

/// An aggregate; each is equal only to itself.
#[derive(Clone, Debug)]
pub(crate) struct EngineAggregate(Arc<Inner>);

impl PartialEq for EngineAggregate {
    fn eq(&self, other: &EngineAggregate) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for EngineAggregate {}

impl Hash for EngineAggregate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

/// The partial state of one group.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
enum State {
    Engine(AggregateState),
    /// The first value.
    Single(Option<Value>),
}

impl State {
    fn new(call: &Call) -> State {
        match call {
            Call::Aggregate(call) => State::Engine(AggregateState::new(call)),
            Call::Single(_) => State::Single(None),
        }
    }

    fn update(&mut self, value: Value) -> Result<()> {
        match self {
            State::Engine(state) => state.update(&value),
            State::Single(single) => {
                single.get_or_insert(value);
                Ok(())
            }
        }
    }

    fn merge(&mut self, other: State) -> Result<()> {
        match (self, other) {
            (State::Engine(state), State::Engine(other)) => state.merge(other),
            (_, State::Single(None)) => Ok(()),
            (single, State::Single(Some(value))) => single.update(value),
            _ => Err(SqlError::internal("states of different aggregates")),
        }
    }

    fn finish(&self) -> Result<Value> {
        match self {
            State::Engine(state) => state.finish(),
            State::Single(single) => Ok(single.clone().unwrap_or(Value::Null)),
        }
    }

    fn size(&self) -> usize {
        size_of::<State>()
            + match self {
                State::Engine(state) => state.heap_size(),
                State::Single(single) => single.as_ref().map_or(0, Value::heap_size),
            }
    }
}

impl Inner {
    /// Whether every row counts, NULL or not.
    fn counts_rows(&self) -> bool {
        matches!(&self.call, Call::Aggregate(AggregateCall { argument: None, .. }))
    }

    /// An error when nobody waits for the statement any more: DataFusion has many rows computed before it lets others run.
    fn check(&self) -> Result<()> {
        check_wanted(&*self.reader)
    }

    fn states_array(&self, states: &[State]) -> DataFusionResult<ArrayRef> {
        let bytes = states.iter().map(|state| {
            postcard::to_stdvec(state)
                .map_err(|e| external(SqlError::internal(format!("a partial state: {e}"))))
        });
        let bytes = bytes.collect::<DataFusionResult<Vec<Vec<u8>>>>()?;
        Ok(Arc::new(BinaryArray::from_iter_values(bytes)))
    }

    fn read_state(&self, array: &BinaryArray, row: usize) -> DataFusionResult<State> {
        postcard::from_bytes(array.value(row))
            .map_err(|e| external(SqlError::internal(format!("a partial state: {e}"))))
    }

    fn results(&self, states: &[State]) -> DataFusionResult<ArrayRef> {
        let values = states.iter().map(State::finish).collect::<Result<Vec<Value>>>().map_err(external)?;
        values_to_array(&values, &self.output).map_err(external)
    }

    /// The arguments of a row.
    fn row(&self, arrays: &[ArrayRef], row: usize) -> Vec<Value> {
        arrays.iter().zip(&self.arguments).map(|(array, ty)| arrow_cell_to_value(array, row, ty)).collect()
    }

    fn update_one(&self, state: &mut State, arrays: &[ArrayRef]) -> Result<()> {
        let array = &arrays[0];
        match state {
            State::Engine(state) if arrays.len() > 1 => {
                (0..array.len()).try_for_each(|row| state.update_further(self.row(arrays, row)))
            }
            State::Engine(state) => state.update_array(array, 0..array.len()),
            single => (0..array.len())
                .try_for_each(|row| single.update(arrow_cell_to_value(array, row, &self.arguments[0]))),
        }
    }
}

impl EngineAggregate {
    /// An aggregate whose arguments have been computed, filter included.
    pub(crate) fn new(name: String, call: Call, reader: &Arc<dyn Reader>) -> Result<EngineAggregate> {
        let output = call.ty()?;
        let mut arguments: Vec<Type> = call.arguments().map(Expr::ty).collect();
        if arguments.is_empty() {
            arguments.push(Type::Bool);
        }
        let signature = Signature::any(arguments.len(), Volatility::Immutable);
        let reader = reader.clone();
        Ok(EngineAggregate(Arc::new(Inner { name, call, arguments, output, reader, signature })))
    }
}

impl AggregateUDFImpl for EngineAggregate {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn signature(&self) -> &Signature {
        &self.0.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> DataFusionResult<DataType> {
        Ok(self.0.output.arrow())
    }

    /// What it gives of no rows.
    fn default_value(&self, _ty: &DataType) -> DataFusionResult<ScalarValue> {
        ScalarValue::try_from_array(&self.0.results(&[State::new(&self.0.call)])?, 0)
    }

    fn accumulator(&self, _args: AccumulatorArgs) -> DataFusionResult<Box<dyn Accumulator>> {
        Ok(Box::new(One { aggregate: self.0.clone(), state: State::new(&self.0.call) }))
    }

    fn create_sliding_accumulator(&self, _args: AccumulatorArgs) -> DataFusionResult<Box<dyn Accumulator>> {
        Ok(Box::new(Sliding::new(self.0.clone())))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> DataFusionResult<Vec<FieldRef>> {
        Ok(vec![Arc::new(Field::new(format!("{}[state]", args.name), DataType::Binary, true))])
    }

    fn groups_accumulator_supported(&self, _args: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(
        &self,
        _args: AccumulatorArgs,
    ) -> DataFusionResult<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(Many { aggregate: self.0.clone(), states: States::new(&self.0.call), size: 0 }))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }
}

/// All rows are one group.
#[derive(Debug)]
struct One {
    aggregate: Arc<Inner>,
    state: State,
}

fn scalar(array: &ArrayRef) -> DataFusionResult<ScalarValue> {
    ScalarValue::try_from_array(array, 0)
}

impl Accumulator for One {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DataFusionResult<()> {
        self.aggregate.update_one(&mut self.state, values).map_err(external)
    }

    fn evaluate(&mut self) -> DataFusionResult<ScalarValue> {
        scalar(&self.aggregate.results(std::slice::from_ref(&self.state))?)
    }

    fn size(&self) -> usize {
        self.state.size()
    }

    fn state(&mut self) -> DataFusionResult<Vec<ScalarValue>> {
        Ok(vec![scalar(&self.aggregate.states_array(std::slice::from_ref(&self.state))?)?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DataFusionResult<()> {
        let states = states[0].as_binary::<i32>();
        for row in 0..states.len() {
            let state = self.aggregate.read_state(states, row)?;
            self.state.merge(state).map_err(external)?;
        }
        Ok(())
    }
}

/// The rows of a frame that moves: a queue of which the state is known without a look at every row. What joins goes into the
/// state of the back. What leaves goes from the front, whose states are those of each of its rows with all behind it; when it is
/// empty, the back becomes the front, so that each row is taken in twice.
#[derive(Debug)]
struct Sliding {
    aggregate: Arc<Inner>,
    /// The last is of the whole front.
    front: Vec<State>,
    back: State,
    /// Of the back.
    values: VecDeque<Value>,
    /// Bytes that the front's states hold.
    size: usize,
}

impl Sliding {
    fn new(aggregate: Arc<Inner>) -> Sliding {
        let back = State::new(&aggregate.call);
        Sliding { aggregate, front: Vec::new(), back, values: VecDeque::new(), size: 0 }
    }

    /// Whether states are small, so that one for each row may be kept. Other frames are computed anew for each row: the exact
    /// sums of floats take half a kilobyte and more.
    fn is_kept(&self) -> bool {
        use AggregateFunction as F;
        let Call::Aggregate(call) = &self.aggregate.call else { return false };
        let is_float = matches!(self.aggregate.arguments[0], Type::Float4 | Type::Float8);
        match call.function {
            F::Spread(_) | F::StringAgg => false,
            F::Sum | F::Avg => !call.distinct && !is_float,
            _ => !call.distinct,
        }
    }

    /// Makes a front of the back.
    fn turn(&mut self) -> Result<()> {
        let mut state = State::new(&self.aggregate.call);
        while let Some(value) = self.values.pop_back() {
            if self.front.len().is_multiple_of(LOOKS) {
                self.aggregate.check()?;
            }
            state.update(value)?;
            self.size += state.size();
            self.front.push(state.clone());
        }
        self.back = State::new(&self.aggregate.call);
        Ok(())
    }

    fn result(&self) -> Result<State> {
        if self.is_kept() {
            let whole = self.front.last().cloned();
            let mut whole = whole.unwrap_or_else(|| State::new(&self.aggregate.call));
            whole.merge(self.back.clone())?;
            return Ok(whole);
        }
        let mut state = State::new(&self.aggregate.call);
        for (index, value) in self.values.iter().enumerate() {
            if index.is_multiple_of(LOOKS) {
                self.aggregate.check()?;
            }
            state.update(value.clone())?;
        }
        Ok(state)
    }
}

impl Accumulator for Sliding {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DataFusionResult<()> {
        self.aggregate.check().map_err(external)?;
        let array = &values[0];
        for row in 0..array.len() {
            let value = arrow_cell_to_value(array, row, &self.aggregate.arguments[0]);
            if self.is_kept() {
                self.back.update(value.clone()).map_err(external)?;
            }
            self.values.push_back(value);
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> DataFusionResult<()> {
        let mut rows = values[0].len();
        if !self.is_kept() {
            self.values.drain(..rows.min(self.values.len()));
            return Ok(());
        }
        while rows > 0 {
            if self.front.is_empty() {
                if self.values.is_empty() {
                    break;
                }
                self.turn().map_err(external)?;
            }
            let left = self.front.len() - rows.min(self.front.len());
            rows -= self.front.len() - left;
            self.size -= self.front.drain(left..).map(|state| state.size()).sum::<usize>();
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> DataFusionResult<ScalarValue> {
        self.aggregate.check().map_err(external)?;
        scalar(&self.aggregate.results(&[self.result().map_err(external)?])?)
    }

    fn size(&self) -> usize {
        let values = self.values.iter().map(|v| size_of::<Value>() + v.heap_size()).sum::<usize>();
        self.size + self.back.size() + values
    }

    fn state(&mut self) -> DataFusionResult<Vec<ScalarValue>> {
        Err(external(SqlError::internal("a partial state of a window")))
    }

    fn merge_batch(&mut self, _states: &[ArrayRef]) -> DataFusionResult<()> {
        Err(external(SqlError::internal("a partial state of a window")))
    }
}

/// The states of all groups.
enum States {
    Engine(Vec<AggregateState>),
    Single(Vec<Option<Value>>),
}

impl States {
    fn new(call: &Call) -> States {
        match call {
            Call::Aggregate(_) => States::Engine(Vec::new()),
            Call::Single(_) => States::Single(Vec::new()),
        }
    }

    fn grow(&mut self, call: &Call, groups: usize) {
        match (self, call) {
            (States::Engine(states), Call::Aggregate(call)) if states.len() < groups => {
                states.resize(groups, AggregateState::new(call));
            }
            (States::Single(states), _) if states.len() < groups => states.resize(groups, None),
            _ => {}
        }
    }

    fn take(&mut self, emit: EmitTo) -> Vec<State> {
        match self {
            States::Engine(states) => emit.take_needed(states).into_iter().map(State::Engine).collect(),
            States::Single(states) => emit.take_needed(states).into_iter().map(State::Single).collect(),
        }
    }
}

struct Many {
    aggregate: Arc<Inner>,
    states: States,
    /// Bytes of the states, as of the last batch.
    size: usize,
}

impl Many {
    fn update(&mut self, arrays: &[ArrayRef], groups: &[usize]) -> Result<()> {
        let array = &arrays[0];
        match &mut self.states {
            States::Engine(states) if arrays.len() > 1 => {
                for (row, group) in groups.iter().enumerate() {
                    states[*group].update_further(self.aggregate.row(arrays, row))?;
                }
                Ok(())
            }
            States::Engine(states) if self.aggregate.counts_rows() => {
                groups.iter().for_each(|group| states[*group].update_count(1));
                Ok(())
            }
            States::Engine(states) => AggregateState::update_grouped(states, groups, array),
            States::Single(states) => {
                for (row, group) in groups.iter().enumerate() {
                    let value = || arrow_cell_to_value(array, row, &self.aggregate.arguments[0]);
                    states[*group].get_or_insert_with(value);
                }
                Ok(())
            }
        }
    }

    fn measure(&mut self) {
        self.size = match &self.states {
            States::Engine(states) => {
                states.iter().map(|s| size_of::<AggregateState>() + s.heap_size()).sum()
            }
            States::Single(states) => {
                let heap = states.iter().map(|v| v.as_ref().map_or(0, Value::heap_size));
                heap.map(|bytes| bytes + size_of::<Option<Value>>()).sum()
            }
        };
    }
}

impl GroupsAccumulator for Many {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&arrow::array::BooleanArray>,
        total: usize,
    ) -> DataFusionResult<()> {
        self.states.grow(&self.aggregate.call, total);
        if filter.is_some() {
            return Err(external(SqlError::internal("a filter that is not a part of the argument")));
        }
        self.update(values, groups).map_err(external)?;
        self.measure();
        Ok(())
    }

    fn merge_batch(&mut self, values: &[ArrayRef], groups: &[usize], total: usize) -> DataFusionResult<()> {
        self.states.grow(&self.aggregate.call, total);
        let array = values[0].as_binary::<i32>();
        for (row, group) in groups.iter().enumerate() {
            let state = self.aggregate.read_state(array, row)?;
            match (&mut self.states, state) {
                (States::Engine(states), State::Engine(other)) => {
                    states[*group].merge(other).map_err(external)?;
                }
                (States::Single(states), other) => {
                    let mut state = State::Single(states[*group].take());
                    state.merge(other).map_err(external)?;
                    if let State::Single(value) = state {
                        states[*group] = value;
                    }
                }
                _ => return Err(external(SqlError::internal("states of different aggregates"))),
            }
        }
        self.measure();
        Ok(())
    }

    fn evaluate(&mut self, emit: EmitTo) -> DataFusionResult<ArrayRef> {
        let states = self.states.take(emit);
        self.measure();
        self.aggregate.results(&states)
    }

    fn state(&mut self, emit: EmitTo) -> DataFusionResult<Vec<ArrayRef>> {
        let states = self.states.take(emit);
        self.measure();
        Ok(vec![self.aggregate.states_array(&states)?])
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&arrow::array::BooleanArray>,
    ) -> DataFusionResult<Vec<ArrayRef>> {
        if filter.is_some() {
            return Err(external(SqlError::internal("a filter that is not a part of the argument")));
        }
        let array = &values[0];
        let mut states = Vec::with_capacity(array.len());
        for row in 0..array.len() {
            let mut state = State::new(&self.aggregate.call);
            match &mut state {
                State::Engine(state) if values.len() > 1 => {
                    state.update_further(self.aggregate.row(values, row)).map_err(external)?;
                }
                state => {
                    let value = arrow_cell_to_value(array, row, &self.aggregate.arguments[0]);
                    state.update(value).map_err(external)?;
                }
            }
            states.push(state);
        }
        Ok(vec![self.aggregate.states_array(&states)?])
    }

    fn size(&self) -> usize {
        self.size
    }
}
