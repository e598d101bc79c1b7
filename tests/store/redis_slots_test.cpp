#include <gtest/gtest.h>
#include <hiredis/hiredis.h>

#include "tqcache/store/backends/redis_client.h"

namespace tqcache::store {
namespace redis_slots_test {

const RedisAddress kAsked{"asked", 7000};

RedisReply parsed(const std::string& text) {
  const std::unique_ptr<redisReader, void (*)(redisReader*)> reader(redisReaderCreate(),
                                                                    redisReaderFree);
  redisReaderFeed(reader.get(), text.data(), text.size());
  void* reply = nullptr;
  redisReaderGetReply(reader.get(), &reply);
  return RedisReply(static_cast<redisReply*>(reply));
}

std::string range(int first, int last, const std::string& node) {
  return "*3\r\n:" + std::to_string(first) + "\r\n:" + std::to_string(last) + "\r\n" + node;
}

TEST(RedisSlots, AreThoseOfTheSpecification) {
  EXPECT_EQ(slot_of("123456789"), 0x31C3);  // the check value of this CRC-16, below 16384
  EXPECT_EQ(slot_of(""), 0);
  EXPECT_EQ(slot_of("foo"), 12182);
}

TEST(RedisSlots, BelongToWhatStandsInBraces) {
  EXPECT_EQ(slot_of("{user1000}.following"), slot_of("user1000"));
  EXPECT_EQ(slot_of("foo{bar}{zap}"), slot_of("bar"));
  EXPECT_EQ(slot_of("foo{{bar}}zap"), slot_of("{bar"));
  EXPECT_NE(slot_of("foo{}{bar}"), slot_of("bar"));
}

TEST(RedisRedirection, IsReadFromARefusal) {
  const auto moved = parse_redirection("MOVED 3999 127.0.0.1:6381", kAsked);
  ASSERT_TRUE(moved.has_value());
  EXPECT_FALSE(moved->once);
  EXPECT_EQ(moved->slot, 3999);
  EXPECT_EQ(moved->address, (RedisAddress{"127.0.0.1", 6381}));
  const auto ask = parse_redirection("ASK 1 ::1:6381", kAsked);
  ASSERT_TRUE(ask.has_value());
  EXPECT_TRUE(ask->once);
  EXPECT_EQ(ask->address.host, "::1");
  EXPECT_EQ(parse_redirection("MOVED 1 :6381", kAsked)->address.host, "asked");
}

TEST(RedisRedirection, IsNoneWhenItIsIncomplete) {
  for (const char* text :
       {"", "MOVED", "MOVED ", "MOVED 1", "MOVED 1 host", "MOVED 16384 h:1", "MOVED x h:1",
        "MOVED 1 h:0", "MOVED 1 h:65536", "MOVED 1 h:", "MOVED 1:2", "ERR no", "ASKING 1 h:1"}) {
    EXPECT_FALSE(parse_redirection(text, kAsked).has_value()) << text;
  }
}

TEST(RedisRedirection, NamesNoHostThatCannotBeShown) {
  for (const std::string host : {"a b", "a\x1b[2J", "a\xff", "a\n"}) {
    EXPECT_FALSE(parse_redirection("MOVED 1 " + host + ":1", kAsked).has_value()) << host;
  }
  EXPECT_TRUE(parse_redirection("MOVED 1 " + std::string(255, 'a') + ":1", kAsked).has_value());
  EXPECT_FALSE(parse_redirection("MOVED 1 " + std::string(256, 'a') + ":1", kAsked).has_value());
}

TEST(SlotTable, KnowsNothingInTheBeginning) { EXPECT_EQ(SlotTable().node(5, kAsked), kAsked); }

TEST(SlotTable, TakesTheAnswerOfANode) {
  SlotTable table;
  const RedisReply slots = parsed("*2\r\n" + range(0, 99, "*2\r\n$1\r\na\r\n:1\r\n") +
                                  range(100, 16383, "*3\r\n$0\r\n\r\n:2\r\n$2\r\nid\r\n"));
  ASSERT_TRUE(table.set_all(*slots, kAsked).ok());
  EXPECT_EQ(table.node(0, kAsked), (RedisAddress{"a", 1}));
  EXPECT_EQ(table.node(99, kAsked), (RedisAddress{"a", 1}));
  EXPECT_EQ(table.node(100, kAsked), (RedisAddress{"asked", 2}));
  EXPECT_EQ(table.nodes().size(), 2u);
}

TEST(SlotTable, HasNoHostThatCannotBeShown) {
  SlotTable table;
  const RedisReply slots = parsed("*1\r\n" + range(0, 99, "*2\r\n$2\r\na\x1b\r\n:1\r\n"));
  EXPECT_EQ(table.set_all(*slots, kAsked).error().code, ErrorCode::kCorrupt);
}

TEST(SlotTable, ChangesOneSlot) {
  SlotTable table;
  const RedisReply slots = parsed("*1\r\n" + range(0, 16383, "*2\r\n$1\r\na\r\n:1\r\n"));
  ASSERT_TRUE(table.set_all(*slots, kAsked).ok());
  table.set(7, {"b", 2});
  EXPECT_EQ(table.node(6, kAsked).host, "a");
  EXPECT_EQ(table.node(7, kAsked).host, "b");
  EXPECT_EQ(table.node(8, kAsked).host, "a");
  table.set(16383, {"c", 3});
  EXPECT_EQ(table.node(16383, kAsked).host, "c");
}

TEST(SlotTable, RefusesWhatIsNoTable) {
  SlotTable table;
  table.set(0, {"kept", 1});
  for (const std::string& text :
       {std::string(":1\r\n"), std::string("*1\r\n:1\r\n"), std::string("*1\r\n*2\r\n:0\r\n:1\r\n"),
        "*1\r\n" + range(-1, 5, "*2\r\n$1\r\na\r\n:1\r\n"),
        "*1\r\n" + range(16384, 5, "*2\r\n$1\r\na\r\n:1\r\n"),
        "*1\r\n" + range(0, 5, "*1\r\n$1\r\na\r\n"),
        "*1\r\n" + range(0, 5, "*2\r\n$1\r\na\r\n:0\r\n"), "*1\r\n" + range(0, 5, ":1\r\n")}) {
    const Result<void> done = table.set_all(*parsed(text), kAsked);
    ASSERT_FALSE(done.ok()) << text;
    EXPECT_EQ(done.error().code, ErrorCode::kCorrupt);
    EXPECT_EQ(table.node(0, kAsked).host, "kept");
  }
}

}  // namespace redis_slots_test
}  // namespace tqcache::store
