// Conversations as text by the library's chat templates, for tests that compare them with another
// renderer's.
//
// usage: render_chats < chats.json > texts.json
//
// Of each chat: {"template": Jinja text, "messages": [{"role", "content"}], "begin_token",
// "asks", "thinks"}. The output is an array of [name of the form, text].

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tqcache/tokenizer.h"

namespace {

using namespace tqcache;
using Json = nlohmann::json;

tokenizer::ChatRole role_of(const std::string& name) {
  if (name == "system") return tokenizer::ChatRole::kSystem;
  return name == "user" ? tokenizer::ChatRole::kUser : tokenizer::ChatRole::kAssistant;
}

Result<Json> render(const Json& chat) {
  std::vector<tokenizer::ChatMessage> messages;
  for (const Json& message : chat["messages"]) {
    messages.push_back({role_of(message["role"]), message["content"]});
  }
  tokenizer::ChatTemplate::RenderOptions options;
  options.begin_token = chat["begin_token"];
  options.asks = chat["asks"];
  options.thinks = chat["thinks"];
  TQC_TRY_ASSIGN(const auto form, tokenizer::ChatTemplate::recognize(
                                      chat["template"].get_ref<const std::string&>()));
  TQC_TRY_ASSIGN(const tokenizer::ChatText text, form.render(messages, options));
  return Json{form.format().name, text.text};
}

Result<void> run() {
  Json texts = Json::array();
  for (const Json& chat : Json::parse(std::cin)) {
    TQC_TRY_ASSIGN(Json text, render(chat));
    texts.push_back(std::move(text));
  }
  std::cout << texts;
  return {};
}

}  // namespace

int main() {
  const Result<void> done = run();
  if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
