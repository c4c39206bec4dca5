//! How bookings are made up, and how they become rows.

use std::sync::LazyLock;

use super::{
    BLOCK_ROWS, Inline, Ticket,
    random::{Random, Weighted, mix},
    world::{CABINS, DIETS, MEN, PAYMENTS, STATUSES, SURNAMES, WOMEN, WORLD, currency},
};

/// Days from 1970-01-01 to 2026-01-01, the first day of departure; a Thursday.
const FIRST_DAY: i32 = 20_454;
/// The letters and digits of record locators: those that nobody confuses.
const LOCATOR_ALPHABET: &[u8; 32] = b"ABCDEFGHJKLMNPQRSTUVWXYZ23456789";
/// Kilometres at which a destination is half as attractive as one next door.
const ATTRACTION_KM: u32 = 2_500;

struct Distributions {
    party: Weighted,
    departure: Weighted,
    lead_days: Weighted,
    stay_days: Weighted,
    hour: Weighted,
    surname: Weighted,
    woman: Weighted,
    man: Weighted,
    status: Weighted,
    payment: Weighted,
    diet: Weighted,
    cabin: Weighted,
    booking_class: Weighted,
    office: Weighted,
    age: Weighted,
    tier: Weighted,
    bags: Weighted,
}

static DISTRIBUTIONS: LazyLock<Distributions> = LazyLock::new(|| {
    let second = |list: &[(&str, u64)]| list.iter().map(|entry| entry.1).collect::<Vec<_>>();
    // Summer and the turn of the year are busy, Saturdays are quiet.
    let season = [80, 78, 90, 98, 102, 116, 130, 132, 108, 98, 86, 104];
    let weekday = [104, 106, 92, 100, 90, 98, 110];
    let departure: Vec<u64> = (0..365).map(|day| season[day * 12 / 365] * weekday[day % 7]).collect();
    // Each day earlier, 2.6 % fewer people book.
    let lead_days: Vec<u64> =
        std::iter::successors(Some(1_000_000_000_u64), |w| Some(w * 974 / 1000)).take(330).collect();
    let stay_days: Vec<u64> = (1..=60_u64)
        .map(|days| match days {
            1..=4 => 160 - days * 20,
            7 | 14 => 190,
            5..=15 => 90 - days * 3,
            21 => 50,
            _ => 700 / days,
        })
        .collect();
    Distributions {
        party: Weighted::new(&[640, 215, 60, 52, 16, 8, 4, 3, 2]),
        departure: Weighted::new(&departure),
        lead_days: Weighted::new(&lead_days),
        stay_days: Weighted::new(&stay_days),
        hour: Weighted::new(&[
            2, 1, 1, 1, 2, 5, 14, 30, 52, 70, 76, 72, 60, 66, 72, 74, 70, 60, 46, 40, 38, 30, 18, 8,
        ]),
        surname: Weighted::zipf(SURNAMES.len() as u32),
        woman: Weighted::zipf(WOMEN.len() as u32),
        man: Weighted::zipf(MEN.len() as u32),
        status: Weighted::new(&second(STATUSES)),
        payment: Weighted::new(&second(PAYMENTS)),
        diet: Weighted::new(&second(DIETS)),
        cabin: Weighted::new(&CABINS.iter().map(|cabin| cabin.1).collect::<Vec<_>>()),
        booking_class: Weighted::zipf(14),
        office: Weighted::zipf(20_000),
        // Decades of life of a passenger.
        age: Weighted::new(&[40, 60, 170, 220, 200, 150, 100, 45, 14, 1]),
        tier: Weighted::new(&[640, 220, 100, 35, 5]),
        bags: Weighted::new(&[380, 450, 150, 18, 2]),
    }
});

/// The rows of one block: [`BLOCK_ROWS`] of them. The last booking may be cut short.
pub fn block(seed: u64, number: u64) -> Vec<Ticket> {
    let mut rows = Vec::with_capacity(BLOCK_ROWS);
    let mut random = Random::new(seed, number);
    // A block has at most as many bookings as rows, so booking numbers of different blocks never meet.
    let mut booking = number * BLOCK_ROWS as u64;
    while rows.len() < BLOCK_ROWS {
        book(seed, booking, &mut random, &mut rows);
        booking += 1;
    }
    rows
}

/// A bijection of 30-bit numbers that depends on the seed, so that locators and ticket numbers look like nothing but
/// never collide.
fn scramble(seed: u64, number: u64) -> u64 {
    const MASK: u64 = (1 << 30) - 1;
    let key = mix(seed ^ 0x71c7);
    let mut x = number & MASK;
    for round in 0..3_u64 {
        x = (x ^ (key >> (round * 11))) & MASK;
        x = x.wrapping_mul(0x2545_f491) & MASK;
        x ^= x >> 15;
    }
    x
}

fn locator(scrambled: u64) -> Inline<6> {
    let mut text = Inline::new();
    for place in (0..6).rev() {
        text.push(&[LOCATOR_ALPHABET[(scrambled >> (place * 5)) as usize & 31]]);
    }
    text
}

/// One leg of a journey.
struct Leg {
    from: usize,
    to: usize,
    day: i32,
    flight_number: i16,
    time_out: i32,
    arrives_at: i64,
    kilometres: u32,
    status: &'static str,
    operating_airline: Option<&'static str>,
}

/// A destination that is the likelier the larger and the nearer it is.
fn destination(from: usize, random: &mut Random) -> usize {
    for _ in 0..4 {
        let to = WORLD.airport.sample(random);
        if to != from && random.below(ATTRACTION_KM + WORLD.kilometres(from, to)) < ATTRACTION_KM {
            return to;
        }
    }
    let to = WORLD.airport.sample(random);
    if to == from { (to + 1) % WORLD.airports.len() } else { to }
}

/// The flight of an airline from one airport to another; the same journey finds few different flights, and a flight
/// leaves at the same time every day.
fn leg(airline: usize, from: usize, to: usize, day: i32, random: &mut Random) -> Leg {
    let kilometres = WORLD.kilometres(from, to);
    let which = random.below(if kilometres < 1500 { 6 } else { 2 });
    let route = (airline as u64) << 40 | (from as u64) << 24 | (to as u64) << 8 | u64::from(which);
    let flight = mix(route);
    let hour = DISTRIBUTIONS.hour.sample(&mut Random::new(flight, 0)) as i32;
    let time_out = hour * 3600 + ((flight >> 32) % 12) as i32 * 300;
    let zones = ((WORLD.airports[to].longitude - WORLD.airports[from].longitude) / 15.0).round() as i64;
    let minutes = i64::from(35 + kilometres * 60 / 820) / 5 * 5;
    let partner = random.per_myriad(900).then(|| WORLD.airlines[WORLD.airline.sample(random)].code);
    Leg {
        from,
        to,
        day,
        flight_number: (1 + flight % 4999) as i16,
        time_out,
        arrives_at: i64::from(day) * 86_400 + i64::from(time_out) + minutes * 60 + zones * 3600,
        kilometres,
        status: STATUSES[DISTRIBUTIONS.status.sample(random)].0,
        operating_airline: partner.filter(|code| *code != WORLD.airlines[airline].code),
    }
}

/// What all tickets of a booking share.
struct Booking {
    number: u64,
    locator: Inline<6>,
    id: [u8; 16],
    airline: usize,
    legs: Vec<Leg>,
    outbound_legs: usize,
    day_back: Option<i32>,
    booked_at: i64,
    changed_at: i64,
    cabin: usize,
    booking_class: &'static str,
    fare_basis: Inline<12>,
    currency: &'static str,
    payment_form: &'static str,
    agency_office: Inline<9>,
    agency_iata: i32,
    party: i16,
}

fn book(seed: u64, number: u64, random: &mut Random, rows: &mut Vec<Ticket>) {
    let scrambled = scramble(seed, number);
    let booking = Booking::new(seed, number, scrambled, random);
    let family_name = surname(random);
    let mut contact = None;
    for passenger in 1..=booking.party {
        let mut person = Person::new(&booking, passenger, &family_name, random);
        if passenger == 1 {
            contact = person.contact(random);
        }
        person.contact = contact;
        let ticket_number = i64::from(WORLD.airlines[booking.airline].prefix) * 10_000_000_000
            + (scrambled * 9 + passenger as u64 - 1) as i64;
        for segment in 0..booking.legs.len() {
            rows.push(ticket(&booking, &person, passenger, segment, ticket_number, random));
            if rows.len() == BLOCK_ROWS {
                return;
            }
        }
    }
}

impl Booking {
    fn new(seed: u64, number: u64, scrambled: u64, random: &mut Random) -> Booking {
        let d = &*DISTRIBUTIONS;
        let airline = WORLD.airline.sample(random);
        let hub = *random.pick(&WORLD.airlines[airline].hubs);
        let start = if random.per_myriad(5500) { hub } else { WORLD.airport.sample(random) };
        let end = destination(start, random);
        let day = FIRST_DAY + d.departure.sample(random) as i32;
        let day_back = random.per_myriad(6200).then(|| day + 1 + d.stay_days.sample(random) as i32);
        let direct = start == hub || end == hub || random.per_myriad(3500);
        let mut legs = Vec::with_capacity(4);
        let mut fly = |from, to, day, random: &mut Random| legs.push(leg(airline, from, to, day, random));
        if direct {
            fly(start, end, day, random);
        } else {
            fly(start, hub, day, random);
            fly(hub, end, day, random);
        }
        if let Some(back) = day_back {
            if direct {
                fly(end, start, back, random);
            } else {
                fly(end, hub, back, random);
                fly(hub, start, back, random);
            }
        }
        let lead = d.lead_days.sample(random) as i32;
        let booked_at = i64::from(day - lead) * 86_400
            + d.hour.sample(random) as i64 * 3600
            + i64::from(random.below(3600));
        // A booking of the day of departure was made before the flight left.
        let booked_at = booked_at.min(i64::from(day) * 86_400 + i64::from(legs[0].time_out));
        let changed_at = if random.per_myriad(3500) {
            booked_at + i64::from(random.below(lead.max(1) as u32 * 86_400))
        } else {
            booked_at + i64::from(random.below(180))
        };
        let cabin = d.cabin.sample(random);
        let classes = CABINS[cabin].2;
        let booking_class = classes[d.booking_class.sample(random) % classes.len()];
        let mut fare_basis = Inline::new();
        fare_basis.push(booking_class.as_bytes());
        fare_basis.push(random.pick(&["LX", "HX", "LW", "HW", "NR", "OW", "RT", "SP"]).as_bytes());
        fare_basis.push_digits(u64::from(random.below(40)), 2);
        fare_basis.push(WORLD.airports[start].country.as_bytes());
        fare_basis.push(random.pick(&["", "", "1", "EU", "FL", "NC"]).as_bytes());
        let office = d.office.sample(random) as u64;
        let sold_by = mix(office);
        // Half of the offices are where the journey begins, as the airline's own counters are.
        let city = if office < 300 { start } else { WORLD.airport.sample(&mut Random::new(sold_by, 1)) };
        let mut agency_office = Inline::new();
        agency_office.push(WORLD.airports[city].code.as_bytes());
        agency_office.push(if office < 300 { WORLD.airlines[airline].code.as_bytes() } else { b"1A" });
        agency_office.push_digits(office % 10_000, 4);
        let mut id = [0; 16];
        id[..8].copy_from_slice(&mix(seed ^ mix(number ^ 0xb00c)).to_be_bytes());
        id[8..].copy_from_slice(&mix(number ^ mix(seed ^ 0x1d)).to_be_bytes());
        id[6] = id[6] & 0x0f | 0x40;
        id[8] = id[8] & 0x3f | 0x80;
        Booking {
            number,
            locator: locator(scrambled),
            id,
            airline,
            outbound_legs: if direct { 1 } else { 2 },
            legs,
            day_back,
            booked_at,
            changed_at,
            cabin,
            booking_class,
            fare_basis,
            currency: currency(WORLD.airports[city].country),
            payment_form: PAYMENTS[d.payment.sample(random)].0,
            agency_office,
            agency_iata: (sold_by % 90_000_000) as i32 + 10_000_000,
            party: d.party.sample(random) as i16 + 1,
        }
    }
}

/// A passenger.
struct Person {
    surname: Inline<40>,
    given_name: &'static str,
    gender: Option<&'static str>,
    birth_date: Option<i32>,
    nationality: Option<&'static str>,
    frequent_flyer: Option<Inline<16>>,
    tier: Option<i16>,
    contact: Option<Inline<48>>,
    diet: Option<&'static str>,
    wheelchair: bool,
    unaccompanied_minor: bool,
    infant: bool,
    document: Option<[u8; 8]>,
}

fn surname(random: &mut Random) -> Inline<40> {
    let mut name = Inline::new();
    name.push(SURNAMES[DISTRIBUTIONS.surname.sample(random)].as_bytes());
    if random.per_myriad(700) {
        name.push(b"-");
        name.push(SURNAMES[DISTRIBUTIONS.surname.sample(random)].as_bytes());
    }
    name
}

impl Person {
    fn new(booking: &Booking, passenger: i16, family_name: &Inline<40>, random: &mut Random) -> Person {
        let d = &*DISTRIBUTIONS;
        let woman = random.below(2) == 0;
        let decade = d.age.sample(random) as i32;
        let unaccompanied_minor = booking.party == 1 && random.per_myriad(60);
        let days_old = if unaccompanied_minor {
            5 * 365 + random.between(0, 7 * 365)
        } else if passenger == 1 {
            decade.max(2) * 3652 + random.between(0, 3651)
        } else {
            decade * 3652 + random.between(0, 3651)
        };
        let first = &booking.legs[0];
        let country = match random.below(100) {
            0..62 => WORLD.airports[first.from].country,
            62..82 => WORLD.airports[first.to].country,
            _ => WORLD.airports[WORLD.airport.sample(random)].country,
        };
        let member = days_old > 16 * 365 && random.per_myriad(3000);
        let airline = WORLD.airlines[booking.airline].code;
        Person {
            surname: if passenger == 1 || random.per_myriad(7200) { *family_name } else { surname(random) },
            given_name: if woman { WOMEN[d.woman.sample(random)] } else { MEN[d.man.sample(random)] },
            gender: match random.below(1000) {
                0..24 => None,
                24..28 => Some("X"),
                _ => Some(if woman { "F" } else { "M" }),
            },
            birth_date: (!random.per_myriad(1200)).then(|| first.day - days_old),
            nationality: (!random.per_myriad(1500)).then_some(country),
            frequent_flyer: member.then(|| {
                let mut card = Inline::new();
                card.push(airline.as_bytes());
                card.push_digits(random.next() % 1_000_000_000, 9);
                card
            }),
            tier: member.then(|| d.tier.sample(random) as i16),
            contact: None,
            diet: random.per_myriad(430).then(|| DIETS[d.diet.sample(random)].0),
            wheelchair: random.per_myriad(if decade >= 7 { 900 } else { 45 }),
            unaccompanied_minor,
            infant: days_old > 18 * 365 && random.per_myriad(90),
            document: random.per_myriad(1200).then(|| random.next().to_be_bytes()),
        }
    }

    /// An e-mail address, if there is one.
    fn contact(&self, random: &mut Random) -> Option<Inline<48>> {
        if random.per_myriad(800) {
            return None;
        }
        let mut address = Inline::<48>::new();
        address.push(self.given_name.as_bytes());
        address.push(b".");
        address.push(self.surname.as_str().split([' ', '\'']).next_back().unwrap_or_default().as_bytes());
        address.push_digits(u64::from(random.below(100)), 2);
        address.push(random.pick(&["@example.com", "@example.org", "@mail.example"]).as_bytes());
        address.bytes.make_ascii_lowercase();
        Some(address)
    }
}

fn ticket(
    booking: &Booking,
    person: &Person,
    passenger: i16,
    segment: usize,
    ticket_number: i64,
    random: &mut Random,
) -> Ticket {
    let d = &*DISTRIBUTIONS;
    let leg = &booking.legs[segment];
    let multiple = CABINS[booking.cabin].3;
    let per_booking = mix(booking.number) % 100;
    let fare_cents = (2_900 + u64::from(leg.kilometres) * 9) * multiple / 10 * (60 + per_booking) / 100;
    let taxes_cents = 1_200 + u64::from(leg.kilometres) / 2 + mix(leg.from as u64) % 4_500;
    let bags = if segment < booking.outbound_legs { d.bags.sample(random) } else { 1 } as i16;
    let seat = random.per_myriad(4200).then(|| {
        let mut seat = Inline::new();
        let row = if booking.cabin == 0 { random.between(8, 48) } else { random.between(1, 12) };
        if row > 9 {
            seat.push_digits(row as u64, 2);
        } else {
            seat.push_digits(row as u64, 1);
        }
        seat.push(random.pick(&["A", "B", "C", "D", "E", "F"]).as_bytes());
        seat
    });
    Ticket {
        rloc: booking.locator,
        passenger,
        segment: segment as i16 + 1,
        ticket_number,
        booking_id: booking.id,
        status: leg.status,
        booked_at: booking.booked_at,
        changed_at: booking.changed_at,
        airline: WORLD.airlines[booking.airline].code,
        operating_airline: leg.operating_airline,
        flight_number: leg.flight_number,
        origin: WORLD.airports[leg.from].code,
        destination: WORLD.airports[leg.to].code,
        date_out: leg.day,
        time_out: leg.time_out,
        arrives_at: leg.arrives_at,
        date_return: booking.day_back,
        cabin: CABINS[booking.cabin].0,
        booking_class: booking.booking_class,
        fare_basis: booking.fare_basis,
        fare_cents: fare_cents as i64,
        taxes_cents: taxes_cents as i64,
        currency: booking.currency,
        payment_form: booking.payment_form,
        surname: person.surname,
        given_name: person.given_name,
        gender: person.gender,
        birth_date: person.birth_date,
        nationality: person.nationality,
        frequent_flyer: person.frequent_flyer,
        tier: person.tier,
        contact: person.contact,
        seat,
        bags,
        bag_weight_tenths: (0..bags).map(|_| random.between(60, 230)).sum(),
        diet: person.diet,
        wheelchair: person.wheelchair,
        unaccompanied_minor: person.unaccompanied_minor,
        infant: person.infant,
        pet: random.per_myriad(35),
        medical_clearance: random.per_myriad(12),
        oversized_bag: random.per_myriad(80),
        standby: random.per_myriad(110),
        agency_office: booking.agency_office,
        agency_iata: booking.agency_iata,
        co2_tenths: i64::from(leg.kilometres) * multiple as i64 * 9 / 100 + 120,
        document: person.document,
    }
}
