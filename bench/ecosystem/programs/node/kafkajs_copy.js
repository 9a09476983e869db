// kafkajs: an idempotent producer, transactions of which one is aborted, and a group of two that reads committed
// records. Arguments: bootstrap address, topic, number of records. It prints each value that the group read, once a line.
const { Kafka, logLevel } = require("kafkajs");

const [brokers, topic, given] = process.argv.slice(2);
const count = Number(given);
const kafka = new Kafka({ brokers: brokers.split(","), logLevel: logLevel.ERROR });

function messages(text) {
  return Array.from({ length: count }, (_, number) => ({ key: `${text} ${number}`, value: `${text} ${number}` }));
}

async function produce() {
  const plain = kafka.producer({ idempotent: true });
  await plain.connect();
  await plain.send({ topic, messages: messages("plain"), acks: -1 });
  await plain.disconnect();
  const producer = kafka.producer({ idempotent: true, transactionalId: "kafkajs", maxInFlightRequests: 1 });
  await producer.connect();
  for (const text of ["aborted", "committed"]) {
    const transaction = await producer.transaction();
    await transaction.send({ topic, messages: messages(text) });
    await (text === "aborted" ? transaction.abort() : transaction.commit());
  }
  await producer.disconnect();
}

// Both members have partitions before anything is produced, so that both read.
async function read() {
  const members = [kafka.consumer({ groupId: "kafkajs" }), kafka.consumer({ groupId: "kafkajs" })];
  let missing = 2 * count;
  let found;
  const all = new Promise((resolve) => {
    found = resolve;
  });
  const assigned = members.map(
    (member) =>
      new Promise((resolve) => {
        member.on(member.events.GROUP_JOIN, ({ payload }) => {
          if (Object.keys(payload.memberAssignment).length > 0) resolve();
        });
      }),
  );
  for (const member of members) {
    await member.connect();
    await member.subscribe({ topic, fromBeginning: true });
    await member.run({
      eachMessage: async ({ message }) => {
        console.log(message.value.toString());
        missing -= 1;
        if (missing === 0) found();
      },
    });
  }
  await Promise.all(assigned);
  await produce();
  await all;
  await Promise.all(members.map((member) => member.disconnect()));
}

function failed(error) {
  console.error(error);
  process.exit(1);
}

setTimeout(() => failed(new Error("it took longer than two minutes")), 120_000).unref();
read().catch(failed);
