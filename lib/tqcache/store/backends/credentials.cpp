// The one place where the library reads what servers ask for from the environment, when it is told
// to: the program and the C interface do so, a user of the library may.

#include <cstdlib>
#include <initializer_list>
#include <string>

#include "tqcache/store.h"

namespace tqcache::store {
namespace {

// The first of these variables that is set and not empty.
std::string any_of(std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    const char* const value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return {};
}

}  // namespace

Credentials credentials_of_environment() {
  return {.redis_password = any_of({"REDISCLI_AUTH"}),
          .s3_access_key = any_of({"AWS_ACCESS_KEY_ID"}),
          .s3_secret_key = any_of({"AWS_SECRET_ACCESS_KEY"}),
          .s3_session_token = any_of({"AWS_SESSION_TOKEN"}),
          .s3_region = any_of({"AWS_REGION"}),
          .ca_file = any_of({"AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"}),
          .ca_folder = any_of({"SSL_CERT_DIR"})};
}

}  // namespace tqcache::store
